// Reads documents with the scroll helper of an official Node.js client through a gateway that refuses most searches with 429,
// and checks that the helper, which waits and asks again, reads all of them each time.
//
//     NODE_PATH=.../node_modules node patience.js elasticsearch|opensearch BASE_URL
//
// Prints one line of JSON with what was read.
"use strict";

const [name, url] = process.argv.slice(2);
const { Client } = require({ elasticsearch: "@elastic/elasticsearch", opensearch: "@opensearch-project/opensearch" }[name]);

const DOCUMENTS = 20;
const READERS = 10;

async function main() {
  const client = new Client({ node: url, maxRetries: 0, requestTimeout: 30000 });
  const index = `clients-patience-node-${process.pid}`;
  let wrote = 0;
  const counts = [];
  try {
    await client.indices.create({ index, body: { settings: { number_of_shards: 1, number_of_replicas: 0 } } });
    for (; wrote < DOCUMENTS; wrote++) {
      await client.index({ index, id: String(wrote), body: { n: wrote }, refresh: wrote === DOCUMENTS - 1 });
    }
    const read = async () => {
      let n = 0;
      const search = { index, size: 15, body: { query: { match_all: {} } } };
      for await (const page of client.helpers.scrollSearch(search, { wait: 100, maxRetries: 100 })) n += page.documents.length;
      counts.push(n);
    };
    await Promise.all(Array.from({ length: READERS }, read));
  } finally {
    await client.indices.delete({ index }, { ignore: [404] });
    await client.close();
  }
  if (counts.some((n) => n !== DOCUMENTS)) throw new Error(`read ${counts}`);
  console.log(JSON.stringify({ wrote, count: counts[0] }));
}

main().catch((e) => {
  console.error(`${name}: ${e.stack}`);
  process.exit(1);
});

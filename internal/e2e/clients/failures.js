// Asks a gateway that refuses everything or reaches no node, and prints what an official Node.js client makes of it.
//
//     NODE_PATH=.../node_modules node failures.js elasticsearch|opensearch BASE_URL
//
// Prints one line of JSON: of each call the status and the type of the error, as the client has read them.
"use strict";

const [name, url] = process.argv.slice(2);
const { Client } = require({ elasticsearch: "@elastic/elasticsearch", opensearch: "@opensearch-project/opensearch" }[name]);

async function seen(call) {
  try {
    const answer = await call();
    return `answered with ${answer.statusCode} ${JSON.stringify(answer.body)}`;
  } catch (e) {
    const kind = e.body && e.body.error ? e.body.error.type : ""; // an answer to HEAD has none
    return `${e.statusCode} ${kind}`.trim();
  }
}

async function main() {
  const client = new Client({ node: url, maxRetries: 0, requestTimeout: 30000 });
  const out = {
    info: await seen(() => client.info()),
    search: await seen(() => client.search({ index: "i", body: { query: { match_all: {} } } })),
    bulk: await seen(() => client.bulk({ body: [{ index: { _index: "i" } }, { n: 1 }] })),
    msearch: await seen(() => client.msearch({ body: [{ index: "i" }, {}] })),
    get: await seen(() => client.get({ index: "i", id: "1" })),
    exists: await seen(() => client.indices.exists({ index: "i" })),
  };
  await client.close();
  console.log(JSON.stringify(out));
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});

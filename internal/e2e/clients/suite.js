// Runs an official Node.js client through the calls that applications make most, and checks each answer.
//
//     NODE_PATH=.../node_modules node suite.js elasticsearch|opensearch BASE_URL [gzip]
//
// With gzip all bodies are sent compressed, and answers are asked for in that form.
// Prints one line of JSON with what was seen. Ends with 1 and the reason on standard error at the first mismatch. No
// search is sent twice, so that a cache between client and cluster, which may answer a repeated one from before a write,
// is no mismatch.
"use strict";

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");

const [name, url, compression] = process.argv.slice(2);
const package_ = { elasticsearch: "@elastic/elasticsearch", opensearch: "@opensearch-project/opensearch" }[name];
const { Client, errors } = require(package_);

const BULK = 500;
const ODD_ID = "a/b c+d%25é"; // each character breaks when a path is decoded or encoded once too often

// fails checks that call is answered with an error of this status and type, as the client understands it.
async function fails(what, status, type, call) {
  try {
    await call();
  } catch (e) {
    assert.ok(e instanceof errors.ResponseError, `${what}: ${e}`);
    assert.equal(e.statusCode, status, `${what}: status`);
    if (type) assert.equal(e.body.error.type, type, `${what}: error`);
    return e;
  }
  assert.fail(`${what}: no error, want status ${status}`);
}

async function run(client, index) {
  await client.indices.create({
    index,
    body: {
      settings: { number_of_shards: 1, number_of_replicas: 0 },
      mappings: { properties: { kind: { type: "keyword" }, n: { type: "integer" } } },
    },
  });

  const one = await client.index({ index, id: ODD_ID, body: { kind: "single", n: -1 }, refresh: true });
  assert.equal(one.body.result, "created", "index: result");
  const got = await client.get({ index, id: ODD_ID });
  assert.deepEqual([got.body._id, got.body._source], [ODD_ID, { kind: "single", n: -1 }], "get");
  assert.equal((await client.exists({ index, id: ODD_ID })).body, true, "exists");
  assert.equal((await client.exists({ index, id: "nothing" })).body, false, "exists of nothing");

  const documents = Array.from({ length: BULK }, (_, n) => ({ id: String(n), kind: `k${n % 5}`, n }));
  const written = await client.helpers.bulk({
    datasource: documents,
    flushBytes: 10000,
    concurrency: 2,
    refresh: true,
    retries: 0,
    onDocument: ({ id }) => ({ index: { _index: index, _id: id } }),
    onDrop: (dropped) => assert.fail(`bulk: dropped ${JSON.stringify(dropped)}`),
  });
  assert.deepEqual([written.total, written.successful, written.failed], [BULK, BULK, 0], "bulk");
  const conflicts = [];
  await client.helpers.bulk({
    datasource: [{ kind: "k1", n: 1 }],
    retries: 0,
    onDocument: () => ({ create: { _index: index, _id: "1" } }),
    onDrop: ({ status }) => conflicts.push(status),
  });
  assert.deepEqual(conflicts, [409], "bulk create of what is there");

  const count = (await client.count({ index })).body.count;
  assert.equal(count, BULK + 1, "count");

  const found = (
    await client.search({
      index,
      body: {
        query: { term: { kind: "k3" } },
        sort: [{ n: "desc" }],
        size: 3,
        track_total_hits: true,
        aggs: { sum: { sum: { field: "n" } } },
      },
    })
  ).body;
  const sum = documents.reduce((s, d) => s + (d.kind === "k3" ? d.n : 0), 0);
  assert.deepEqual(found.hits.total, { value: BULK / 5, relation: "eq" }, "search: total");
  assert.deepEqual(found.hits.hits.map((h) => h._source.n), [498, 493, 488], "search: hits");
  assert.equal(found.aggregations.sum.value, sum, "search: sum");

  const many = await client.msearch({
    body: [
      { index }, { query: { term: { n: 7 } } },
      { index: `${index}-missing` }, { query: { match_all: {} } },
    ],
  });
  assert.deepEqual(many.body.responses.map((r) => r.status), [200, 404], "msearch");

  const scrolled = [];
  const search = { index, size: 150, body: { query: { match_all: {} } } };
  for await (const page of client.helpers.scrollSearch(search)) {
    scrolled.push(...page.documents.map((d) => d.n));
  }
  scrolled.sort((a, b) => a - b);
  assert.deepEqual(scrolled, Array.from({ length: BULK + 1 }, (_, i) => i - 1), "scroll");

  assert.equal((await client.delete({ index, id: ODD_ID, refresh: true })).body.result, "deleted", "delete");
  const gone = await fails("get of what was deleted", 404, null, () => client.get({ index, id: ODD_ID }));
  assert.equal(gone.body.found, false, "get of what was deleted");
  await fails("search in a missing index", 404, "index_not_found_exception", () =>
    client.search({ index: `${index}-missing`, body: { query: { match_all: {} } } }));
  await fails("search that cannot be parsed", 400, "parsing_exception", () =>
    client.search({ index, body: { query: { no_such_query: {} } } }));
  return { indexed: 1, bulk: written.successful, count, hits: found.hits.hits.length, scrolled: scrolled.length };
}

async function main() {
  // No retries: what goes wrong once must show.
  const client = new Client({ node: url, maxRetries: 0, requestTimeout: 30000, compression: compression || false });
  const index = `clients-node-${name}-${process.pid}`;
  await client.indices.delete({ index }, { ignore: [404] });
  let seen;
  try {
    seen = await run(client, index);
  } finally {
    await client.indices.delete({ index }, { ignore: [404] });
    await client.close();
  }
  // Read, not required: the older package does not export it.
  const about = path.join(path.dirname(require.resolve(package_)), "package.json");
  const { version } = JSON.parse(fs.readFileSync(about, "utf8"));
  console.log(JSON.stringify({ client: `node/${name}${compression ? " with gzip" : ""}`, version, ...seen }));
}

main().catch((e) => {
  console.error(`${name}: ${e.stack}`);
  process.exit(1);
});

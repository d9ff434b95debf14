"""Runs an official Python client through the calls that applications make most, and checks each answer.

    suite.py elasticsearch|opensearch BASE_URL

Prints one line of JSON with what was seen. Ends with 1 and the reason on standard error at the first mismatch. No search
is sent twice, so that a cache between client and cluster, which may answer a repeated one from before a write, is no
mismatch.
"""

import json
import os
import sys
import warnings

# The Elasticsearch client would rather have other arguments than body, which is the one that both take.
warnings.simplefilter("ignore", DeprecationWarning)

name, url = sys.argv[1:]
if name == "elasticsearch":
    import elasticsearch as library
    from elasticsearch import Elasticsearch as Client, helpers
else:
    import opensearchpy as library
    from opensearchpy import OpenSearch as Client, helpers

BULK = 500
ODD_ID = "a/b c+d%25é"  # each character breaks when a path is decoded or encoded once too often


def check(what, got, want):
    if got != want:
        sys.exit(f"{name}: {what}: got {got!r}, want {want!r}")


def fails(what, status, error_type, call):
    """Checks that call is answered with an error of this status and type, as the client understands it."""
    try:
        answer = call()
    except library.TransportError as e:
        check(f"{what}: status", e.status_code, status)
        check(f"{what}: error", e.error, error_type)
        return e
    sys.exit(f"{name}: {what}: got {answer!r}, want status {status}")


def run(client, index):
    client.indices.create(
        index=index,
        body={
            "settings": {"number_of_shards": 1, "number_of_replicas": 0},
            "mappings": {"properties": {"kind": {"type": "keyword"}, "n": {"type": "integer"}}},
        },
    )

    one = client.index(index=index, id=ODD_ID, body={"kind": "single", "n": -1}, refresh=True)
    check("index: result", one["result"], "created")
    got = client.get(index=index, id=ODD_ID)
    check("get", (got["_id"], got["_source"]), (ODD_ID, {"kind": "single", "n": -1}))
    check("exists", client.exists(index=index, id=ODD_ID), True)
    check("exists of nothing", client.exists(index=index, id="nothing"), False)

    documents = ({"_index": index, "_id": str(n), "kind": f"k{n % 5}", "n": n} for n in range(BULK))
    written, errors = helpers.bulk(client, documents, chunk_size=100, refresh=True)
    check("bulk", (written, errors), (BULK, []))
    conflict = {"_op_type": "create", "_index": index, "_id": "1", "kind": "k1", "n": 1}
    _, errors = helpers.bulk(client, [conflict], raise_on_error=False)
    check("bulk create of what is there", [e["create"]["status"] for e in errors], [409])

    count = client.count(index=index)["count"]
    check("count", count, BULK + 1)

    found = client.search(
        index=index,
        body={
            "query": {"term": {"kind": "k3"}},
            "sort": [{"n": "desc"}],
            "size": 3,
            "track_total_hits": True,
            "aggs": {"sum": {"sum": {"field": "n"}}},
        },
    )
    check("search: total", found["hits"]["total"], {"value": BULK // 5, "relation": "eq"})
    check("search: hits", [h["_source"]["n"] for h in found["hits"]["hits"]], [498, 493, 488])
    check("search: sum", found["aggregations"]["sum"]["value"], float(sum(range(3, BULK, 5))))

    many = client.msearch(
        body=[
            {"index": index}, {"query": {"term": {"n": 7}}},
            {"index": index + "-missing"}, {"query": {"match_all": {}}},
        ]
    )
    check("msearch", [r["status"] for r in many["responses"]], [200, 404])

    scrolled = [h["_source"]["n"] for h in helpers.scan(client, index=index, query={"query": {"match_all": {}}}, size=150)]
    check("scroll", sorted(scrolled), list(range(-1, BULK)))

    check("delete", client.delete(index=index, id=ODD_ID, refresh=True)["result"], "deleted")
    try:
        gone = client.get(index=index, id=ODD_ID)
        sys.exit(f"{name}: get of what was deleted: got {gone!r}")
    except library.NotFoundError as e:
        check("get of what was deleted", e.info["found"], False)
    missing = fails(
        "search in a missing index", 404, "index_not_found_exception",
        lambda: client.search(index=index + "-missing", body={"query": {"match_all": {}}}),
    )
    check("missing index: class", isinstance(missing, library.NotFoundError), True)
    fails(
        "search that cannot be parsed", 400, "parsing_exception",
        lambda: client.search(index=index, body={"query": {"no_such_query": {}}}),
    )
    return {"indexed": 1, "bulk": written, "count": count, "hits": len(found["hits"]["hits"]), "scrolled": len(scrolled)}


def main():
    # No retries: what goes wrong once must show.
    client = Client([url], max_retries=0, timeout=30)
    index = f"clients-python-{name}-{os.getpid()}"
    client.indices.delete(index=index, ignore=[404])
    try:
        seen = run(client, index)
    finally:
        client.indices.delete(index=index, ignore=[404])
        client.close()
    print(json.dumps({"client": "python/" + name, "version": library.__versionstr__, **seen}))


main()

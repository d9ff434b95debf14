"""Asks a gateway that refuses everything or reaches no node, and prints what an official Python client makes of it.

    failures.py elasticsearch|opensearch BASE_URL

Prints one line of JSON: of each call the status and the type of the error, as the client has read them.
"""

import json
import sys
import warnings

warnings.simplefilter("ignore")

name, url = sys.argv[1:]
if name == "elasticsearch":
    import elasticsearch as library
    from elasticsearch import Elasticsearch as Client
else:
    import opensearchpy as library
    from opensearchpy import OpenSearch as Client

client = Client([url], max_retries=0, timeout=30)


def seen(call):
    try:
        return f"answered with {call()!r}"
    except library.TransportError as e:
        kind = e.info["error"]["type"] if isinstance(e.info, dict) else e.error  # an answer to HEAD has none
        return f"{e.status_code} {kind}".strip()


print(
    json.dumps(
        {
            "info": seen(client.info),
            "search": seen(lambda: client.search(index="i", body={"query": {"match_all": {}}})),
            "bulk": seen(lambda: client.bulk(body=[{"index": {"_index": "i"}}, {"n": 1}])),
            "msearch": seen(lambda: client.msearch(body=[{"index": "i"}, {}])),
            "get": seen(lambda: client.get(index="i", id="1")),
            "exists": seen(lambda: client.indices.exists(index="i")),
        }
    )
)

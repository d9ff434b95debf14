"""Writes documents with the bulk helper of an official Python client through a gateway that refuses most bulks with 429, and
checks that the helper, told to retry, loses none and writes none twice.

    patience.py elasticsearch|opensearch BASE_URL

Prints one line of JSON with what arrived.
"""

import json
import os
import sys
import warnings

warnings.simplefilter("ignore", DeprecationWarning)

name, url = sys.argv[1:]
if name == "elasticsearch":
    from elasticsearch import Elasticsearch as Client, helpers
else:
    from opensearchpy import OpenSearch as Client, helpers

DOCUMENTS = 200

client = Client([url], max_retries=0, timeout=30)
index = f"clients-patience-python-{os.getpid()}"
try:
    client.indices.create(index=index, body={"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
    # Without an id of its own a document that is sent twice would be there twice.
    documents = ({"_index": index, "n": n} for n in range(DOCUMENTS))
    written = 0
    for ok, item in helpers.streaming_bulk(client, documents, chunk_size=10, max_retries=10, initial_backoff=0.03, max_backoff=0.3):
        written += ok
    client.indices.refresh(index=index)
    count = client.count(index=index)["count"]
finally:
    client.indices.delete(index=index, ignore=[404])
    client.close()
print(json.dumps({"wrote": written, "count": count}))

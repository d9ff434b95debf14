"""Writes documents with the bulk helper of elasticsearch-py until its standard input ends.

    load.py BASE_URL INDEX

Each document has an id of its own. Prints one line of JSON: how many were written, and what failed.
"""

import json
import sys
import threading

from elasticsearch import Elasticsearch, helpers

url, index = sys.argv[1:]
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()


def documents():
    n = 0
    while not ended.wait(0.01):
        yield {"_index": index, "_id": str(n), "n": n}
        n += 1


client = Elasticsearch(url, timeout=60, max_retries=0)
written, failed = 0, []
for ok, item in helpers.streaming_bulk(client, documents(), chunk_size=10, max_retries=5, initial_backoff=0.1, raise_on_error=False):
    written += ok
    if not ok:
        failed.append(item)
print(json.dumps({"written": written, "failed": failed}))

// Package cache holds the filters that keep the answers to searches: get_cache and set_cache, which stand above and below
// the upstream filter of a flow, and cache, which is both in one.
//
// They keep _search, _count, the searches of _msearch and async searches only, in the memory of the process, and only answers of which it is certain that every
// shard has its part in them (see package query). They are not a cache for HTTP: neither ETag nor Expires is looked at,
// since nodes send none. An answer is the truth as of its Age. Package generation says whether its indices have changed since:
// then it is not given any more, and while they have not, it may be given beyond its time to live.
//
// What they trade:
//
//   - A cacheable request is sent on without Accept-Encoding, so that one plain copy serves every caller. Compression
//     between the gateway and the node is given up for that; a caller who refuses plain answers passes the cache by.
//   - Callers who ask the same at the same moment wait for one answer. Nobody gets the answer of a caller with other
//     credentials, nor a failure that another caller's parameters may have caused.
//   - The flow's name is part of every key. Whatever decides, below the cache, which cluster answers must either choose
//     between flows or be named in the key (key_headers, or hash_factor in the classic form).
//   - Filters between the cache and the upstream filter do not see requests that the cache answers.
package cache

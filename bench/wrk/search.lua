-- A search as an application sends it: a POST with a query of some 200 bytes.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"query":{"bool":{"filter":[{"term":{"service":"checkout"}},{"range":{"@timestamp":{"gte":"now-15m"}}}],'
    .. '"must":[{"match":{"message":"timeout"}}]}},"size":10,"sort":[{"@timestamp":"desc"}]}'
dofile("report.lua")

package main

import "strings"

// A benchCase is one comparison.
type benchCase struct {
	name, title string
	// path is asked for; script is the wrk script that says how.
	path, script string
	// size is the length of an answer's body.
	size int
	// connections is the number of wrk's keep-alive connections.
	connections int
	upstream    upstreamUse
	// targets are measured in this order; the first is the gateway.
	targets []target
	// aims are the least ratios of requests per CPU-second, gateway to peer.
	aims map[string]float64
}

// upstreamUse says what the upstream must see of the requests, which tells whether the case measures what it says.
type upstreamUse int

const (
	noUpstream        upstreamUse = iota
	upstreamOnce                  // the answers come from a cache
	upstreamTwentieth             // one in twenty does not
	upstreamEvery                 // each request is forwarded
)

// A target is a server that a case measures. Its configuration comes from file, by the rules of its kind;
// for a program of ours it is an argument.
type target struct{ name, file string }

// program returns what the target runs.
func (t target) program() string {
	if strings.HasPrefix(t.file, "weir/") {
		return "weir"
	}
	return t.name
}

var (
	echoTargets  = []target{{"weir", "weir/echo.yml"}, {"nginx", "peers/nginx-echo.conf"}, {"fasthttp", ""}}
	cacheTargets = []target{{"weir", "weir/cache.yml"}, {"nginx", "peers/nginx-cache.conf"}, {"varnish", ""}}
	proxyTargets = []target{{"weir", "weir/proxy.yml"}, {"nginx", "peers/nginx-proxy.conf"}, {"haproxy", "peers/haproxy-proxy.conf"}}
	limitTargets = []target{
		{"weir", "weir/limit.yml"},
		{"nginx", "peers/nginx-limit.conf"},
		{"haproxy", "peers/haproxy-limit.conf"},
		{"fasthttp", "refuse"},
	}
)

var cases = []benchCase{
	{
		name: "echo", title: "echo, 23 bytes", path: "/", script: "get.lua", size: 23, connections: 100,
		targets: echoTargets, aims: map[string]float64{"fasthttp": 0.95},
	},
	{
		name: loggedCase, title: "echo, 23 bytes, with a record of each request", path: "/", script: "get.lua", size: 23, connections: 100,
		targets: []target{{"weir", "weir/logged.yml"}, {"unlogged", "weir/echo.yml"}}, aims: map[string]float64{"unlogged": 0.8},
	},
	{
		name: "hit-1k", title: "cache hit, 1 kB", path: "/size-1024/_search", script: "get.lua", size: 1 << 10, connections: 100,
		upstream: upstreamOnce, targets: cacheTargets, aims: map[string]float64{"nginx": 1, "varnish": 1},
	},
	{
		name: "hit-100k", title: "cache hit, 100 kB", path: "/size-102400/_search", script: "get.lua", size: 100 << 10, connections: 100,
		upstream: upstreamOnce, targets: cacheTargets, aims: map[string]float64{"nginx": 0.9, "varnish": 0.9},
	},
	{
		name: "proxy-1k", title: "POST _search forwarded, 1 kB", path: "/size-1024/_search", script: "search.lua", size: 1 << 10, connections: 100,
		upstream: upstreamEvery, targets: proxyTargets, aims: map[string]float64{"nginx": 0.9},
	},
	{
		name: "proxy-1m", title: "POST _search forwarded, 1 MB", path: "/size-1048576/_search", script: "search.lua", size: 1 << 20, connections: 20,
		upstream: upstreamEvery, targets: proxyTargets,
	},
	{
		name: crowdCase, title: "Cache hit of 1 kB beside 5,000 idle and 1,000 slow connections", path: "/size-1024/_search", script: "get.lua", size: 1 << 10,
		connections: 20, upstream: upstreamOnce, targets: cacheTargets[:1],
	},
	{
		name: swarmCase, title: "GETs of 1 kB, 95 % from the cache, on 100 and on 1,000 connections", path: "/size-1024/_search", script: "mixed.lua",
		size: 1 << 10, connections: 100, upstream: upstreamTwentieth, targets: cacheTargets[:2],
	},
	{
		name: limitCase, title: "100 requests/s of an address let pass, the others refused", path: "/", script: "get.lua", connections: 100,
		targets: limitTargets, aims: map[string]float64{"fasthttp": 0.95},
	},
	{
		name: idleCase, title: "1,000 idle keep-alive connections", path: "/", size: 23, connections: 1000,
		targets: echoTargets,
	},
}

const (
	// loggedCase compares the gateway with itself.
	loggedCase = "logged"
	// limitCase counts what limits let pass.
	limitCase = "limit"
	// limitRate is the rate in requests a second that its targets are configured with.
	limitRate = 100
	// limitRounds is how many rounds long the one is in which that is counted: thirty seconds by default.
	limitRounds = 10
	// limitAim is how far from the rate what the gateway lets pass may be.
	limitAim = 0.02
	// idleCase measures memory instead of requests.
	idleCase = "idle"
	// idleAimBytes is the most that the idle connections may cost the gateway.
	idleAimBytes = 20 << 20
)

func caseNames() []string {
	names := make([]string, 0, len(cases)+1)
	for _, c := range cases {
		names = append(names, c.name)
	}
	return append(names, recordsCase)
}

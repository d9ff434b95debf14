package elastic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic/estest"
	"weir/internal/conf"
	"weir/internal/simtime"
)

// names is a Resolver, and a Dial, over what a test says.
type names struct {
	es *estest.Cluster

	mu   sync.Mutex // guards the fields below
	ips  []netip.Addr
	srv  []*net.SRV
	err  error
	dial map[string]string // what an address with a name stands for
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host != "es.test" {
		return nil, errors.New("no such host")
	}
	return n.ips, n.err
}

func (n *names) LookupSRV(_ context.Context, _, _, name string) (string, []*net.SRV, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name != "_es._tcp.test" {
		return "", nil, errors.New("no such host")
	}
	return name, n.srv, n.err
}

func (n *names) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	if to, ok := n.dial[addr]; ok {
		addr = to
	}
	n.mu.Unlock()
	return n.es.Dial(ctx, network, addr)
}

func (n *names) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func lookupBubble(t *testing.T, nodes int, text string, n *names, f func(t *testing.T, k *Cluster, logs *logBuffer)) {
	t.Helper()
	simtime.Test(t, func(t *testing.T) {
		n.es = estest.New(t, estest.Options{InMemory: true, Nodes: nodes})
		within(t, n.es, text, Deps{Dial: n.Dial, Resolver: n}, nil, func(t *testing.T, _ *estest.Cluster, k *Cluster, logs *logBuffer) {
			f(t, k, logs)
		})
	})
}

func wantNodes(t *testing.T, k *Cluster, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := nodeNames(k); !slices.Equal(got, want) {
		t.Errorf("nodes are %v, want %v", got, want)
	}
}

func TestEachAddressOfANameIsANode(t *testing.T) {
	n := &names{ips: addrs("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2")}
	lookupBubble(t, 3, ", endpoint: 'dns+http://es.test:9200', discovery: {enabled: false}", n, func(t *testing.T, k *Cluster, logs *logBuffer) {
		wantNodes(t, k, "10.0.0.1:9200", "10.0.0.2:9200")
		if status, err := send(k, "GET", "/_search", ""); err != nil || status != 200 {
			t.Errorf("%d, %v", status, err)
		}
		for _, c := range n.es.Calls() {
			if c.Path == "/_search" && c.Header.Get("Host") != "es.test:9200" {
				t.Errorf("the node was called %q, want the name", c.Header.Get("Host"))
			}
		}
		// A lookup that fails, finds nothing or what is no node of the cluster changes nothing.
		for _, change := range []func(){
			func() { n.err = errors.New("server failure") },
			func() { n.err, n.ips = nil, nil },
			func() { n.ips = addrs("10.9.9.9") },
		} {
			n.set(change)
			<-time.After(time.Minute)
			wantNodes(t, k, "10.0.0.1:9200", "10.0.0.2:9200")
		}
		if c := strings.Count(logs.String(), "lookup failed"); c != 1 {
			t.Errorf("said %d times:\n%s", c, logs)
		}
		n.set(func() { n.ips = addrs("10.0.0.2", "10.0.0.3") })
		<-time.After(time.Minute)
		wantNodes(t, k, "10.0.0.2:9200", "10.0.0.3:9200")
	})
}

func TestEachServiceRecordIsANode(t *testing.T) {
	n := &names{
		srv:  []*net.SRV{{Target: "n2.test.", Port: 9202}, {Target: "n1.test.", Port: 9201}},
		dial: map[string]string{"n1.test:9201": "10.0.0.1:9200", "n2.test:9202": "10.0.0.2:9200"},
	}
	// The cluster lists three nodes, two of which are those that the records name: each counts once.
	lookupBubble(t, 3, ", endpoint: 'srv+http://_es._tcp.test'", n, func(t *testing.T, k *Cluster, logs *logBuffer) {
		wantNodes(t, k, "10.0.0.3:9200", "n1.test:9201", "n2.test:9202")
		if strings.Contains(logs.String(), "level=WARN") {
			t.Errorf("log:\n%s", logs)
		}
	})
}

// A node that is met under two addresses counts once, and the one that is in use stays in use.
func TestNodeThatIsMetUnderTwoAddresses(t *testing.T) {
	n := &names{ips: addrs("10.5.0.1", "10.0.0.2", "10.6.0.2"), dial: map[string]string{
		"10.5.0.1:9200": "10.0.0.1:9200", "10.6.0.2:9200": "10.0.0.2:9200",
	}}
	lookupBubble(t, 3, ", endpoints: ['dns+http://es.test:9200', 'dns+http://es.test:9200'], discovery: {enabled: false}", n, func(t *testing.T, k *Cluster, logs *logBuffer) {
		wantNodes(t, k, "10.0.0.2:9200", "10.5.0.1:9200")
		n.set(func() { n.ips = addrs("10.0.0.1", "10.0.0.2", "10.5.0.1") })
		<-time.After(time.Minute)
		wantNodes(t, k, "10.0.0.2:9200", "10.5.0.1:9200")
		if strings.Contains(logs.String(), "node left") || strings.Contains(logs.String(), "level=WARN") {
			t.Errorf("log:\n%s", logs)
		}
		for i, known := range []bool{true, true, false} {
			if id := n.es.Node(i).ID(); k.NamesNode([]byte("task "+id+":12")) != known {
				t.Errorf("node %d: its id is known is %v, want %v", i, !known, known)
			}
		}
	})
}

// A cluster that lists hundreds of addresses that lead nowhere, such as those of containers that are gone, holds up nothing: a few
// are asked at a time, each gets its turn, and the log has a line for each search, not for each address (olivere/elastic#57).
func TestListWithHundredsOfDeadAddresses(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		es := estest.New(t, estest.Options{InMemory: true, Nodes: 2})
		const dead = 400
		list := `{"nodes":{"` + es.Node(1).ID() + `":{"name":"n2","http":{"publish_address":"10.0.0.2:9200"}}`
		for i := range dead {
			list += fmt.Sprintf(`,"dead%d":{"name":"d","http":{"publish_address":"10.0.0.1:%d"}}`, i, 1000+i)
		}
		es.Inject(estest.Fault{Path: "/_nodes/http", Status: 200, Body: []byte(list + "}}")})
		var now, most atomic.Int64
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == es.Node(0).Addr() || addr == es.Node(1).Addr() {
				return es.Dial(ctx, network, addr)
			}
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		within(t, es, ", endpoint: 'http://10.0.0.1:9200'", Deps{Dial: dial}, nil, func(t *testing.T, _ *estest.Cluster, k *Cluster, logs *logBuffer) {
			rounds := (dead+1)/(5*maxMeeting) + 1 // each of 10 seconds, in which those that are asked take 2
			<-time.After(time.Duration(rounds) * time.Minute)
			wantNodes(t, k, "10.0.0.1:9200", "10.0.0.2:9200")
			if most.Load() > maxMeeting || most.Load() < maxMeeting/2 {
				t.Errorf("%d nodes were asked at the same time", most.Load())
			}
			searches := es.Count("/_nodes/http")
			if c := strings.Count(logs.String(), "level=WARN"); c == 0 || c > searches || strings.Count(logs.String(), "10.0.0.1:1") > 4*searches {
				t.Errorf("%d warnings in %d searches:\n%s", c, searches, logs)
			}
			families, err := k.deps.Metrics.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if strings.Contains(f.String(), "10.0.0.1:1") {
					t.Errorf("%s has a series of a node that never was", f.GetName())
				}
			}
		})
	})
}

// All nodes come back with new addresses: the configured name, looked up anew with each connection, leads to them
// (olivere/elastic#740).
func TestEveryAddressIsReplaced(t *testing.T) {
	n := &names{dial: map[string]string{"es.test:9200": "10.0.0.1:9200"}}
	lookupBubble(t, 6, ", endpoint: 'http://es.test:9200'", n, func(t *testing.T, k *Cluster, _ *logBuffer) {
		es := n.es
		for _, node := range es.Nodes()[:3] {
			node.Stop()
		}
		n.set(func() { n.dial["es.test:9200"] = "10.0.0.5:9200" })
		start := time.Now()
		for {
			if status, err := send(k, "GET", "/_search", ""); err == nil && status == 200 {
				break
			}
			if time.Since(start) > checkInterval {
				t.Fatal("not found again within the time between two checks")
			}
			<-time.After(100 * time.Millisecond)
		}
		<-time.After(time.Minute)
		wantNodes(t, k, "10.0.0.4:9200", "10.0.0.6:9200", "es.test:9200")
	})
}

// The configured node is a dedicated master, and the others publish addresses that do not work: it is still better than none.
func TestNodeOfTheWrongKindIsBetterThanNone(t *testing.T) {
	n := &names{dial: map[string]string{}}
	simtime.Test(t, func(t *testing.T) {
		n.es = estest.New(t, estest.Options{InMemory: true, Nodes: 2})
		n.es.Node(0).SetRoles("master")
		n.es.Node(1).Publish("192.0.2.7:9200")
		within(t, n.es, ", endpoint: 'http://10.0.0.1:9200'", Deps{Dial: n.Dial}, nil, func(t *testing.T, _ *estest.Cluster, k *Cluster, _ *logBuffer) {
			<-time.After(time.Minute)
			wantNodes(t, k, "10.0.0.1:9200")
		})
	})
}

func TestLookupEndpoints(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		e, err := ParseEndpoint(text)
		got := e.String()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	f("dns+https://es.test", "dns+https://es.test:443")
	f("dns+http://es.test:9200/base/", "dns+http://es.test:9200/base")
	f("srv+https://_es._tcp.test/base", "srv+https://_es._tcp.test/base")
	f("srv+https://u:p4ss@_es._tcp.test:9200", `"srv+https://***@_es._tcp.test:9200": SRV records say the port themselves`)
	f("dns+srv+http://es.test:9200", `"dns+srv+http://es.test:9200" is not the address of a node such as http://localhost:9200`)
}

func TestExcludedNodes(t *testing.T) {
	f := func(text string, l listed, want bool) {
		t.Helper()
		n, p := conf.Parse("test.yml", "[{name: test, endpoint: 'http://a:1', discovery: {exclude: {"+text+"}}}]", nil)
		c := DecodeClusters(n, p)["test"]
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		if got := c.Discovery.Exclude.excludes(l); got != want {
			t.Errorf("%s: %+v: got %v", text, l, got)
		}
	}
	f("names: ['es-old-*', x]", listed{name: "es-old-3"}, true)
	f("names: ['es-old-*', x]", listed{name: "es-new-3"}, false)
	f("roles: ml", listed{roles: []string{"data", "ml"}}, true)
	f("roles: ml", listed{roles: []string{"data"}}, false)
	f("attributes: {box: slow}", listed{attributes: map[string]string{"box": "slow"}}, true)
	f("attributes: {box: slow}", listed{attributes: map[string]string{"box": "fast"}}, false)
	f("attributes: {box: ''}", listed{}, false)

	n := &names{}
	lookupBubble(t, 3, ", endpoint: 'http://10.0.0.1:9200', discovery: {exclude: {names: [n1, n3]}}", n, func(t *testing.T, k *Cluster, _ *logBuffer) {
		wantNodes(t, k, "10.0.0.2:9200")
	})
}

// What nodes are for decides who reads first; nodes of old data come last; the zone is a preference, not a wall.
func TestRolesAndZones(t *testing.T) {
	shares := func(roles [][]string, attributes []string, text, method, target string) []int {
		t.Helper()
		var got []int
		simtime.Test(t, func(t *testing.T) {
			es := estest.New(t, estest.Options{InMemory: true, Nodes: len(roles)})
			for i, r := range roles {
				es.Node(i).SetRoles(r...)
				if attributes != nil {
					es.Node(i).SetAttributes(map[string]string{"zone": attributes[i]})
				}
			}
			within(t, es, ", endpoint: 'http://10.0.0.1:9200'"+text, Deps{Dial: es.Dial}, nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
				<-time.After(time.Minute) // slow starts are over
				es.Forget()
				path, _, _ := strings.Cut(target, "?")
				es.Inject(estest.Fault{Path: path, Delay: 20 * time.Millisecond})
				var wg sync.WaitGroup
				for range 120 {
					wg.Go(func() { _, _ = send(k, method, target, "{}") })
					<-time.After(time.Millisecond)
				}
				wg.Wait()
				for _, n := range es.Nodes() {
					count := 0
					for _, c := range n.Calls() {
						if c.Path == path {
							count++
						}
					}
					got = append(got, count)
				}
			})
		})
		return got
	}
	data, front, replica, cold := []string{"data", "ingest"}, []string{}, []string{"search"}, []string{"data_cold"}
	f := func(got []int, ok func(n []int) bool) {
		t.Helper()
		if !ok(got) {
			t.Errorf("shares are %v", got)
		}
	}
	const search, write = "/_search", "/i/_doc"
	f(shares([][]string{data, data, front, replica}, nil, "", "POST", search), func(n []int) bool { return n[0]+n[1] == 0 && n[2] > 40 && n[3] > 40 })
	f(shares([][]string{data, data, front, replica}, nil, "", "POST", write), func(n []int) bool { return n[3] == 0 && n[0] > 20 && n[1] > 20 && n[2] > 20 })
	f(shares([][]string{data, {"data"}, {"data"}}, nil, "", "POST", write+"?pipeline=p"), func(n []int) bool { return n[1]+n[2] == 0 })
	f(shares([][]string{data, {"data"}, {"data"}}, nil, "", "POST", write+"?pipeline=_none"), func(n []int) bool { return n[1]+n[2] > 40 })
	f(shares([][]string{{"data"}, {"data"}}, nil, "", "POST", write+"?pipeline=p"), func(n []int) bool { return n[0] > 30 && n[1] > 30 })
	f(shares([][]string{data, data, front}, nil, "", "POST", search), func(n []int) bool { return n[0] > 20 && n[1] > 20 && n[2] > 20 })
	f(shares([][]string{data, cold, cold}, nil, "", "POST", search), func(n []int) bool { return n[1]+n[2] == 0 })
	f(shares([][]string{cold, cold}, nil, "", "POST", search), func(n []int) bool { return n[0] > 30 && n[1] > 30 })
	zones := []string{"a", "a", "b", "b"}
	near := func(n []int) bool { return n[0]+n[1] > 66 && n[2]+n[3] > 20 }
	f(shares([][]string{data, data, data, data}, zones, ", balance: {zone: a}", "POST", search), near)
	even := func(n []int) bool { return n[0]+n[1] < 66 && n[2]+n[3] < 66 }
	f(shares([][]string{data, data, data, data}, zones, "", "POST", search), even)
	f(shares([][]string{data, data, data, data}, []string{"a", "b", "b", "b"}, ", balance: {zone: a}", "POST", search), func(n []int) bool { return n[0] < 36 })
}

// A configured node whose id is not known, because a proxy refuses to say it, takes turns with those that the cluster lists.
func TestNodeOfUnknownIDIsAnOrdinaryOne(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		es := estest.New(t, estest.Options{InMemory: true, Nodes: 2})
		es.Inject(estest.Fault{Path: "/_nodes/_local/http", Status: 403})
		within(t, es, ", endpoint: 'http://10.0.0.1:9200'", Deps{Dial: es.Dial}, nil, func(t *testing.T, es *estest.Cluster, k *Cluster, _ *logBuffer) {
			<-time.After(5 * time.Minute)
			wantNodes(t, k, "10.0.0.1:9200", "10.0.0.2:9200")
			for range 100 {
				if status, err := send(k, "GET", "/_search", ""); err != nil || status != 200 {
					t.Fatalf("%d, %v", status, err)
				}
			}
			var shares [2]int
			for _, c := range es.Calls() {
				if c.Path == "/_search" {
					shares[c.Node]++
				}
			}
			if shares[0] < 20 || shares[1] < 20 {
				t.Errorf("searches of each node: %v", shares)
			}
		})
	})
}

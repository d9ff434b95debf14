package elastic

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Resolver looks up what endpoints that begin with dns+ and srv+ stand for. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (cname string, addrs []*net.SRV, err error)
}

// The kinds of lookups, as endpoints begin.
const (
	lookupDNS = "dns+" // each address of a name is a node
	lookupSRV = "srv+" // each SRV record of a name is a node (RFC 2782); its weight and priority do not count
)

// maxLookup bounds the nodes that one endpoint may stand for: more are no cluster, but a mistake in a zone.
const maxLookup = 256

// resolve looks up the endpoints that stand for several nodes. A lookup that fails, or finds nothing, changes nothing. It
// returns false if one did.
func (k *Cluster) resolve(ctx context.Context) bool {
	ok := true
	var fresh []*listed
	for _, e := range k.lookups {
		found, err := k.lookup(ctx, e)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("nothing is known of it")
		}
		if err != nil {
			ok = false
			k.metrics.discovery[1].Inc()
			if k.ctx.Err() == nil {
				k.warnOnce("lookup "+e.String(), "lookup failed, going on with the nodes that are known", "endpoint", e, "error", err)
			}
			for _, l := range k.resolved {
				if l.source == e.String() {
					fresh = append(fresh, l)
				}
			}
			continue
		}
		k.metrics.discovery[0].Inc()
		k.warned.Delete("lookup " + e.String())
		for _, f := range found {
			// What is known of an address is kept.
			same := func(l *listed) bool { return l.endpoint == f }
			i := slices.IndexFunc(k.resolved, same)
			switch {
			case slices.ContainsFunc(fresh, same): // two lookups lead to it
			case i >= 0:
				fresh = append(fresh, k.resolved[i])
			default:
				fresh = append(fresh, &listed{endpoint: f, source: e.String()})
			}
		}
	}
	k.resolved = fresh
	return ok
}

// lookup returns the addresses that e stands for, with everything else as e has it.
func (k *Cluster) lookup(ctx context.Context, e Endpoint) ([]Endpoint, error) {
	var out []Endpoint
	add := func(addr, host string) {
		one := e
		one.Lookup, one.Addr, one.Host = "", addr, host
		if to, ok := k.options.Discovery.Rewrite[addr]; ok {
			one.Addr = to
		}
		out = append(out, one)
	}
	if e.Lookup == lookupSRV {
		_, records, err := k.deps.Resolver.LookupSRV(ctx, "", "", e.Addr)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			addr := net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))
			add(addr, addr)
		}
	} else {
		name, port, err := net.SplitHostPort(e.Addr)
		if err != nil {
			return nil, err
		}
		ips, err := k.deps.Resolver.LookupNetIP(ctx, "ip", name)
		if err != nil {
			return nil, err
		}
		for _, ip := range ips {
			add(net.JoinHostPort(ip.Unmap().String(), port), e.Host)
		}
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return strings.Compare(a.Addr, b.Addr) })
	out = slices.Compact(out)
	return out[:min(len(out), maxLookup)], nil
}

package cache

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"weir/flows"
)

// filtering is a node that heeds filter_path, as far as names of members at the top go.
func filtering(members map[string]string, order ...string) func(x *flows.Exchange, call int64) error {
	return func(x *flows.Exchange, _ int64) error {
		_, patterns, filtered := strings.Cut(string(x.Request.Query), "filter_path=")
		var out []string
		for _, name := range order {
			if !filtered || strings.Contains(","+patterns+",", ","+name+",") {
				out = append(out, `"`+name+`":`+members[name])
			}
		}
		reply(x, 200, "{"+strings.Join(out, ",")+"}")
		return nil
	}
}

// What filter_path hides is asked for, judged, and given to nobody.
func TestFilterPath(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		order := []string{"took", "timed_out", "_shards", "hits"}
		good := map[string]string{
			"took": "1", "timed_out": "false", "_shards": `{"total":2,"successful":2,"skipped":0,"failed":0}`, "hits": `{"hits":[1.0]}`,
		}
		f := func(target, want, status string) {
			t.Helper()
			for _, status := range []string{status, strings.Replace(status, "weir; fwd=miss; stored", "weir; hit; ttl=", 1)} {
				x := r.ask(target, `{}`)
				if bodyOf(x) != want || !strings.HasPrefix(field(x, "cache-status"), status) || string(x.Request.Target) != target {
					t.Errorf("%s: %s %s, want %s %s", x.Request.Target, bodyOf(x), field(x, "cache-status"), want, status)
				}
			}
		}
		const stored = "weir; fwd=miss; stored"
		r.node = filtering(good, order...)
		f("/i/_search?filter_path=hits", `{"hits":{"hits":[1.0]}}`, stored)
		f("/i/_search?filter_path=hits,timed_out", `{"timed_out":false,"hits":{"hits":[1.0]}}`, stored)
		f("/i/_search?filter_path=nothing", `{}`, stored)
		f("/i/_search?filter_path=*its", `{}`, "weir; fwd=bypass; detail=filter-path")
		r.wantCalls(5)

		bad := map[string]string{"took": "1", "timed_out": "false", "_shards": `{"total":2,"successful":1,"failed":1}`, "hits": `{}`}
		r.node = filtering(bad, order...)
		f("/j/_search?filter_path=hits", `{"hits":{}}`, "weir; fwd=miss; detail=shards")
		bad["_shards"], bad["timed_out"] = good["_shards"], "true"
		f("/k/_search?filter_path=hits", `{"hits":{}}`, "weir; fwd=miss; detail=timed-out")
		f("/k/_search?filter_path=_shards,hits", `{"_shards":`+good["_shards"]+`,"hits":{}}`, "weir; fwd=miss; detail=timed-out")
		early := map[string]string{"timed_out": "false", "terminated_early": "true", "_shards": good["_shards"], "hits": `{}`}
		r.node = filtering(early, "timed_out", "terminated_early", "_shards", "hits")
		f("/l/_search?filter_path=timed_out,_shards,hits", `{"timed_out":false,"_shards":`+good["_shards"]+`,"hits":{}}`, "weir; fwd=miss; detail=terminated-early")
	})
}

// An answer that is too large to be cut is asked for as the client did, and from then on alone.
func TestFilterPathOfLargeAnswers(t *testing.T) {
	for _, text := range []string{
		`[{name: main, filter: [{cache: {max_entry: 1kb}}, {node: {}}]}]`,
		`[{name: main, filter: [{get_cache: {}}, {node: {}}, {set_cache: {max_response_size: 1kb}}]}]`,
	} {
		r := newRig(t, text)
		r.node = filtering(map[string]string{"timed_out": "false", "hits": `"` + strings.Repeat("x", 2000) + `"`}, "timed_out", "hits")
		for i, want := range []struct {
			calls  int64
			status string
		}{{2, "weir; fwd=miss; detail=too-large"}, {3, "weir; fwd=miss; detail=filter-path"}} {
			x := r.ask("/i/_search?filter_path=hits", `{}`)
			wantStatus(t, x, want.status)
			r.wantCalls(want.calls)
			if body := bodyOf(x); !strings.HasPrefix(body, `{"hits":"xx`) || len(body) != 2011 {
				t.Errorf("%d: %.60s", i, body)
			}
		}
	}
}

// An answer that came compressed, unasked, cannot be cut either.
func TestFilterPathOfPackedAnswers(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		whole := filtering(map[string]string{"timed_out": "false", "hits": `{}`}, "timed_out", "hits")
		r.node = func(x *flows.Exchange, call int64) error {
			if err := whole(x, call); err != nil {
				return err
			}
			var out bytes.Buffer
			w := gzip.NewWriter(&out)
			_, _ = w.Write([]byte(bodyOf(x)))
			_ = w.Close()
			x.Response.Body.Replace(out.Bytes())
			x.Response.Header.AddString("Content-Encoding", "gzip")
			return nil
		}
		for i, want := range []struct {
			calls  int64
			status string
		}{{2, "weir; fwd=miss; detail=content-encoding"}, {3, "weir; fwd=miss; detail=filter-path"}} {
			x := r.ask("/i/_search?filter_path=hits", `{}`)
			wantStatus(t, x, want.status)
			r.wantCalls(want.calls)
			if body := unzip(t, bodyOf(x)); body != `{"hits":{}}` {
				t.Errorf("%d: %s", i, body)
			}
		}
	})
}

// Those who wait for an answer are given what was cut, too.
func TestFilterPathOfWaiters(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		ask := func() *flows.Exchange { return request("/i/_search?filter_path=hits", `{}`) }
		_, c, release := stampede(r, 9, ask, ask, filtering(map[string]string{
			"timed_out": "true", "_shards": `{"total":2,"successful":2,"failed":0}`, "hits": `{}`,
		}, "timed_out", "_shards", "hits"))
		close(release)
		c.wg.Wait()
		r.wantCalls(1)
		for _, x := range c.all {
			if bodyOf(x) != `{"hits":{}}` {
				t.Errorf("%s %s", bodyOf(x), field(x, "cache-status"))
			}
		}
	})
}

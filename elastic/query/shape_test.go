package query

import (
	"strings"
	"testing"
)

func TestShape(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		var c Canon
		canonical, _, err := c.Body(nil, []byte(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if got := string(Shape(nil, canonical)); got != want {
			t.Errorf("%s:\n%s, want\n%s", body, got, want)
		}
	}
	f(``, `{}`)
	f(`{"size":10,"from":0}`, `{"from":?,"size":?}`)
	f(`{"query":{"match":{"title":"red \"shoes\""}}}`, `{"query":{"match":{"title":?}}}`)
	f(`{"query":{"terms":{"sku":["a","b","c"]}}}`, `{"query":{"terms":{"sku":[?]}}}`)
	f(`{"query":{"bool":{"should":[{"term":{"a":1}},{"term":{"a":2}},{"term":{"b":true}},null]}}}`,
		`{"query":{"bool":{"should":[{"term":{"a":?}},{"term":{"b":?}},?]}}}`)
	f(`{"aggs":{"by":{"terms":{"field":"user","size":9,"missing":"secret"},"aggs":{"p":{"avg":{"field":"price"}}}}}}`,
		`{"aggs":{"by":{"aggs":{"p":{"avg":{"field":"price"}}},"terms":{"field":"user","missing":?,"size":?}}}}`)
	f(`{"aggs":{"c":{"composite":{"sources":[{"d":{"terms":{"field":"day"}}}]},"meta":{"field":"secret"}}}}`,
		`{"aggs":{"c":{"composite":{"sources":[{"d":{"terms":{"field":"day"}}}]},"meta":{"field":?}}}}`)
	f(`{"sort":["price",{"day":"desc"},"_score"]}`, `{"sort":["price",{"day":?},"_score"]}`)
	f(`{"query":{"exists":{"field":"price"}},"collapse":{"field":"shop"}}`, `{"collapse":{"field":"shop"},"query":{"exists":{"field":"price"}}}`)
	f(`{"query":{"term":{"field":"secret"}}}`, `{"query":{"term":{"field":?}}}`)
	f(`{"query":{"script_score":{"script":{"params":{"sort":"secret","aggs":{"a":{"b":{"field":"secret"}}}}}}}}`,
		`{"query":{"script_score":{"script":{"params":{"aggs":{"a":{"b":{"field":?}}},"sort":?}}}}}`)
}

// FuzzShape looks for a body whose shape cannot be made, or shows a value that looks like a secret where it must not.
func FuzzShape(f *testing.F) {
	f.Add([]byte(`{"query":{"bool":{"must":[{"match":{"a":"b"}}],"filter":{"range":{"t":{"gte":"now-1d"}}}}}}`))
	f.Add([]byte(`{"aggs":{"a":{"terms":{"field":"x"}}},"sort":[["y"],{"z":{"order":"asc"}}],"size":-1.5e3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var c Canon
		canonical, _, err := c.Body(nil, body)
		if err != nil {
			return
		}
		shape := Shape(nil, canonical)
		if len(shape) > len(canonical) {
			t.Fatalf("the shape of %s is longer: %s", canonical, shape)
		}
		if again := Shape([]byte("x"), canonical); string(again) != "x"+string(shape) {
			t.Fatalf("%s is not %s", again, shape)
		}
	})
}

func TestShapeDoesNotAllocate(t *testing.T) {
	body := []byte(`{"query":{"terms":{"sku":["a","b"` + strings.Repeat(`,"c"`, 100) + `]}}}`)
	dst := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { _ = Shape(dst[:0], body) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

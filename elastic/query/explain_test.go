package query

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/wire"
)

func TestExplain(t *testing.T) {
	k, err := NewKeyer(Options{Secret: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	f := func(rawQuery, body string, why Reason, want Account) {
		t.Helper()
		var h wire.Header
		h.AddString("Content-Type", "application/json")
		h.AddString("Authorization", "Basic c2VjcmV0")
		h.AddString("User-Agent", "x")
		r := &Request{API: "search", Method: []byte("POST"), Index: []byte("i"), RawQuery: []byte(rawQuery), Header: &h, Body: []byte(body)}
		for range 2 { // the second time the key is remembered
			key, v, got := k.Explain(r)
			wantKey, wantVerdict := k.Key(r)
			if key != wantKey || v != wantVerdict || v.Bypass != why {
				t.Errorf("%s %s: %v differs from what Key says, or from %q", rawQuery, body, v, why)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s %s: -want +got\n%s", rawQuery, body, diff)
			}
		}
	}
	who := []string{"authorization"}
	f("", ` {"size": 0, "\u0061":1}`, "", Account{Body: `{"a":1,"size":0}`, Identity: who})
	f("timeout=1s&routing=a%20b&preference=me&pretty", `{"size":0,"timeout":"2s","stats":["x"]}`, "",
		Account{
			Body: `{"size":0}`, Args: []string{"pretty=true", "routing=a b"},
			Dropped: []string{"preference=me", "timeout=1s", `body "timeout":"2s"`, `body "stats":["x"]`}, Identity: who,
		})
	f("", `{"size":1,"size":2}`, ReasonDuplicateKey, Account{Identity: who})
	f("scroll=1m", `{"size":1}`, ReasonScroll, Account{Body: `{"size":1}`, Args: []string{"scroll=1m"}, Identity: who})
	// What came before leaves nothing behind.
	f("", "", "", Account{Body: `{}`, Identity: who})
}

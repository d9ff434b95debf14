package e2e

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A between stands between a gateway and a node. It counts the searches that come, and does to them what a test says.
type between struct {
	url   string
	asked atomic.Int64 // searches that came

	mu     sync.Mutex // guards the field below
	meddle meddler
}

// A meddler does something to a call on its way to the node, or to its answer.
type meddler func(w http.ResponseWriter, r *http.Request, node http.Handler)

// putBetween starts one before a node.
func putBetween(tb testing.TB, node string) *between {
	tb.Helper()
	to, err := url.Parse(node)
	if err != nil {
		tb.Fatal(err)
	}
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0), // a node that is away is what some tests are about
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
	}
	b := &between{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isSearch(r) {
			b.asked.Add(1)
		}
		b.mu.Lock()
		meddle := b.meddle
		b.mu.Unlock()
		if meddle == nil {
			proxy.ServeHTTP(w, r)
			return
		}
		meddle(w, r, proxy)
	}))
	tb.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	b.url = s.URL
	return b
}

// isSearch tells a search from the calls of the gateway itself, and from writes.
func isSearch(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, "search") || strings.HasSuffix(r.URL.Path, "_count")
}

// onSearches has m done to all searches from now on, nil for nothing.
func (b *between) onSearches(m meddler) {
	b.onAll(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		if m == nil || !isSearch(r) {
			node.ServeHTTP(w, r)
			return
		}
		m(w, r, node)
	})
}

// onAll has m done to all calls from now on.
func (b *between) onAll(m meddler) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.meddle = m
}

// answered lets the node answer, and returns that.
func answered(r *http.Request, node http.Handler) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	node.ServeHTTP(rec, r)
	return rec
}

// send gives an answer with another body, and the length that it has unless one is given.
func send(w http.ResponseWriter, rec *httptest.ResponseRecorder, body string, length int) {
	for name, values := range rec.Header() {
		w.Header()[name] = values
	}
	if length < 0 {
		length = len(body)
	}
	w.Header().Set("Content-Length", strconv.Itoa(length))
	w.WriteHeader(rec.Code)
	_, _ = w.Write([]byte(body)) // who is cut off has left, or was given a shorter length
}

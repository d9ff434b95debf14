package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// lay lays all traps for what stands at a handler, and returns the names of those that went wrong.
func lay(t *testing.T, h http.Handler) []string {
	t.Helper()
	ts := httptest.NewServer(h)
	defer ts.Close()
	s := &server{address: strings.TrimPrefix(ts.URL, "http://")}
	var wrong []string
	for _, trap := range traps {
		first := s.ask(t.Context(), trap.first)
		if trap.between != nil {
			if r := s.ask(t.Context(), *trap.between); !good(r) {
				t.Errorf("%s: %+v", trap.name, r)
			}
		}
		if !trap.right(first, s.ask(t.Context(), trap.second)) {
			wrong = append(wrong, trap.name)
		}
	}
	return wrong
}

// A node by itself falls into no trap: what a cache makes wrong is the cache's.
func TestNodeFallsIntoNoTrap(t *testing.T) {
	if wrong := lay(t, &trapNode{calls: map[string]int{}}); len(wrong) > 0 {
		t.Errorf("wrong: %q", wrong)
	}
}

// urlCache keeps the first answer to a URL, whatever it is.
type urlCache struct {
	next http.Handler
	kept sync.Map // URL (string) → *httptest.ResponseRecorder
}

func (c *urlCache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, hit := c.kept.Load(r.URL.String())
	if !hit {
		fresh := httptest.NewRecorder()
		c.next.ServeHTTP(fresh, r)
		c.kept.Store(r.URL.String(), fresh)
		found = fresh
	}
	answer := found.(*httptest.ResponseRecorder)
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = io.WriteString(w, answer.Body.String())
}

// A cache that knows nothing of Elasticsearch falls into all of them.
func TestSimpleCacheFallsIntoEveryTrap(t *testing.T) {
	if wrong := lay(t, &urlCache{next: &trapNode{calls: map[string]int{}}}); len(wrong) != len(traps) {
		t.Errorf("wrong are only %q", wrong)
	}
}

func TestTrapTable(t *testing.T) {
	list := make([]outcome, len(traps))
	for i := range list {
		list[i] = outcome{right: i > 0, asked: 1 + i%2}
	}
	control := [2]outcome{{true, 1}, {true, 1}}
	text := trapTable([]string{"weir", "nginx"}, map[string][]outcome{"weir": list, "nginx": list},
		map[string][2]outcome{"weir": control, "nginx": control}, []string{"nginx: 1.2"})
	if strings.Count(text, "**wrong**") != 2 || strings.Count(text, "\n| ") != len(traps)+4 || !strings.Contains(text, "| weir | nginx 1.2 |") {
		t.Errorf("got\n%s", text)
	}
}

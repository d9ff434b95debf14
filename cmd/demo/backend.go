package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"weir/elastic/estest"
	"weir/internal/searchnode"
)

// The indices of the demo.
const (
	index   = "shop-logs"
	limited = "limited-shop"
	records = "gateway_requests"
)

// documents is how many documents are loaded.
const documents = 5000

// backend is the cluster behind the gateway.
type backend struct {
	url    string
	close  func()
	theirs bool // it goes on after the demo, with what the demo left in it
}

// startBackend finds a cluster: the one at ES_URL, a real OpenSearch node, or the one in memory.
func startBackend(ctx context.Context, out io.Writer) (*backend, error) {
	if url := os.Getenv("ES_URL"); url != "" {
		fmt.Fprintf(out, "using the cluster at ES_URL, %s: its indices %s and %s are replaced\n", url, index, limited)
		return &backend{url, func() {}, true}, nil
	}
	const engine = "opensearch2"
	reason, ok := searchnode.Find(engine)
	if ok {
		fmt.Fprintln(out, "starting a real OpenSearch node (the first time its jars are fetched with Maven)")
		c, err := searchnode.Start(ctx, searchnode.Options{Engine: engine, Nodes: 1})
		if err == nil {
			return &backend{c.URLs()[0], func() { _ = c.Close() }, false}, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		reason = err.Error()
	}
	fmt.Fprintf(out, "no real node (%s): using the cluster in memory\n", reason)
	c, err := estest.Start(estest.Options{Flavor: estest.OpenSearch2})
	if err != nil {
		return nil, err
	}
	return &backend{c.URL(), c.Close, false}, nil
}

// load puts documents into the cluster, around the gateway.
func load(ctx context.Context, url string, out io.Writer) error {
	for _, name := range []string{index, limited} {
		// A cluster at ES_URL may have it from the last time.
		_, _ = call(ctx, http.MethodDelete, url+"/"+name, nil)
		if _, err := call(ctx, http.MethodPut, url+"/"+name, []byte(estest.SampleIndex)); err != nil {
			return fmt.Errorf("create index %s: %w", name, err)
		}
	}
	for body := range estest.Sample(index, documents, 1, time.Now()) {
		if _, err := call(ctx, http.MethodPost, url+"/_bulk", body); err != nil {
			return fmt.Errorf("load documents: %w", err)
		}
	}
	if _, err := call(ctx, http.MethodPost, url+"/"+index+","+limited+"/_refresh", nil); err != nil {
		return err
	}
	fmt.Fprintf(out, "loaded %d documents into %s\n", documents, index)
	return nil
}

// answer is an answer with its body read.
type answer struct {
	*http.Response
	body []byte
	took time.Duration
}

// call makes a request. The error is that of the connection, or an answer of 400 and above.
func call(ctx context.Context, method, url string, body []byte) (*answer, error) {
	a, err := ask(ctx, method, url, body)
	if err == nil && a.StatusCode >= 400 {
		err = fmt.Errorf("%s: %s", a.Status, clip(a.body))
	}
	return a, err
}

// ask makes a request and takes any answer.
func ask(ctx context.Context, method, url string, body []byte) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	return &answer{resp, data, time.Since(start)}, err
}

func get(ctx context.Context, url string) (*answer, error) {
	return call(ctx, http.MethodGet, url, nil)
}

func clip(b []byte) []byte { return b[:min(len(b), 300)] }

// fatal is an error after which trying again is no use.
type fatal struct{ error }

// until repeats f until it succeeds, for at most limit.
func until(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil || errors.As(err, new(fatal)) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w, last: %w", context.Cause(ctx), err)
		}
	}
}

// freeAddress returns want if nobody listens there, otherwise the same host with a free port.
func freeAddress(want string) (string, error) {
	host, _, err := net.SplitHostPort(want)
	if err != nil {
		return "", err
	}
	for _, addr := range []string{want, net.JoinHostPort(host, "0")} {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			defer func() { _ = l.Close() }()
			return l.Addr().String(), nil
		}
	}
	return "", fmt.Errorf("no free port on %s", host)
}

package elastic

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic/api"
	"weir/elastic/estest"
	"weir/elastic/transport"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/simtime"
	"weir/internal/wire"
)

// TestAnHourOfFaults lives through an hour of simulated time in which nodes reset, stall, truncate, say too much and are
// restarted, and callers leave. WEIR_SEED repeats a run; WEIR_SOAK makes it fifty runs.
func TestAnHourOfFaults(t *testing.T) {
	runs := 1
	if os.Getenv("WEIR_SOAK") != "" {
		runs = 50
	}
	seed := rand.Uint64()
	if text := os.Getenv("WEIR_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for i := range runs {
		t.Run(fmt.Sprint("WEIR_SEED=", seed+uint64(i)), func(t *testing.T) {
			simtime.Test(t, func(t *testing.T) { liveAnHour(t, seed+uint64(i)) })
		})
	}
}

// trouble is the fault of a node that gets the request called id for the nth time: it follows from these and the seed
// alone. Of five exchanges one goes wrong.
func trouble(seed uint64, id string, nth int) *estest.Fault {
	h := fnv.New64()
	h.Write([]byte(id))
	r := rand.New(rand.NewPCG(seed^h.Sum64(), uint64(nth)))
	size := 1 + r.IntN(3000)
	if r.IntN(20) == 0 {
		size = 100_000 // streamed
	}
	f := &estest.Fault{
		Status: 200, Body: bytes.Repeat([]byte(id+" "), 1+size/len(id)), Header: []string{"X-Id: " + id},
		Delay: time.Duration(r.IntN(300)) * time.Millisecond,
	}
	if r.IntN(3) == 0 {
		f.Chunk = 1 + len(f.Body)/5
	}
	if r.IntN(5) > 0 {
		return f
	}
	switch r.IntN(10) {
	case 0:
		f.Cut = estest.ResetBeforeBody
	case 1:
		f.Cut = estest.ResetAfterRequest
	case 2:
		f.Cut = estest.CloseAfterRequest
	case 3:
		f.Cut = estest.CloseAfterAnswer
	case 4:
		f.Delay = time.Hour
	case 5:
		f.Raw = []byte("HTTP/1.1 200 OK\r\nContent-Le")
	case 6:
		f.Status, f.Body = []int{502, 503, 504, 429}[r.IntN(4)], nil
	case 7:
		f.Missing = 1 + r.IntN(len(f.Body))
	case 8:
		if f.Chunk == 0 {
			f.LengthOff = 10
		}
	case 9:
		if f.Chunk == 0 && len(f.Body) < 3000 {
			const more = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nfor somebody"
			f.Body, f.LengthOff = append(f.Body, more...), -len(more)
		}
	}
	return f
}

func liveAnHour(t *testing.T, seed uint64) {
	const callers, nodes = 6, 3
	es, err := estest.Start(estest.Options{Nodes: nodes, InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	list := "["
	for _, n := range es.Nodes() {
		list += "'http://" + n.Addr() + "', "
	}
	root, p := conf.Parse("test.yml", "[{name: test, endpoints: "+list+"]}]", nil)
	config := DecodeClusters(root, p)["test"]
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	o := DefaultPool()
	o.MaxConns, o.MaxBuffered, o.PieceTimeout, o.WaitTimeout = 4, 10_000, 5*time.Second, 2*time.Second
	o.MaxAge = 5 * time.Minute
	k, err := NewCluster(config, o, Deps{Metrics: obs.NewMetrics(), Logger: slog.New(slog.DiscardHandler), Dial: es.Dial})
	if err != nil {
		t.Fatal(err)
	}
	heard, ran := map[string]int{}, map[string]int{} // used by the script alone until the end
	es.Script(func(c *estest.Call) *estest.Fault {
		id := c.Header.Get("X-Id")
		if id == "" {
			return nil
		}
		heard[id]++
		f := trouble(seed, id, heard[id])
		if f.Status != 429 {
			ran[id]++
		}
		return f
	})
	k.Start()
	end := time.Now().Add(time.Hour)
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(seed, 1))
		for {
			<-time.After(time.Duration(r.IntN(120)) * time.Second)
			if time.Now().After(end) {
				return
			}
			n := es.Node(r.IntN(nodes))
			n.Stop()
			<-time.After(time.Duration(r.IntN(40)) * time.Second)
			if err := n.Start(); err != nil {
				t.Error(err)
			}
			es.Forget()
		}
	})
	var good, bad, left int
	var mu sync.Mutex // guards the three
	for i := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(2+i)))
			for j := 0; time.Now().Before(end); j++ {
				<-time.After(time.Duration(r.IntN(8000)) * time.Millisecond)
				ok, gone := ask(t, k, r, fmt.Sprintf("c%d-%d", i, j))
				mu.Lock()
				switch {
				case ok:
					good++
				case gone:
					left++
				default:
					bad++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d good, %d bad, %d left", good, bad, left)
	if good < 10*bad/2 || bad == 0 || left == 0 {
		t.Error("the mixture is not what it should be")
	}
	if n := inFlight(k); n != 0 {
		t.Errorf("%d exchanges are in flight in the end", n)
	}
	members := append([]*member(nil), k.picker.Members()...)
	k.Close()
	synctest.Wait()
	for _, m := range members {
		if s := m.Node.pool.Stats(); s.Open != 0 || s.InUse != 0 || s.Waiting != 0 {
			t.Errorf("%s after Close: %+v", m.Name, s)
		}
	}
	for _, n := range es.Nodes() {
		if open, _ := n.Conns(); open != 0 {
			t.Errorf("%d connections are open after Close", open)
		}
	}
	es.Close()
	for id, n := range ran {
		if id[len(id)-1] == 'u' && n > 1 {
			t.Errorf("%s, an unsafe write, ran %d times", id, n)
		}
	}
}

// ask sends one request and judges what comes of it: whether it was answered well, and whether the caller left before.
func ask(t *testing.T, k *Cluster, r *rand.Rand, id string) (ok, gone bool) {
	method, target, body := "POST", "/i/_search", `{"query":{}}`
	if r.IntN(3) == 0 {
		id += "u"
		method, target, body = "PUT", "/_bulk", "{\"index\":{\"_index\":\"i\"}}\n{}\n"
	}
	c := call(method, target, body)
	c.Header.AddString("X-Id", id)
	c.HeadTimeout = 10 * time.Second
	c.Cancel = new(wire.Cancel)
	if r.IntN(20) == 0 && c.Idempotency == api.Read {
		leave := time.AfterFunc(time.Duration(r.IntN(300))*time.Millisecond, c.Cancel.Fire)
		defer leave.Stop()
	}
	var resp transport.Response
	defer resp.Reset()
	err := k.Do(c, &resp)
	got, status := resp.Body, resp.Status
	if err == nil && resp.Stream != nil {
		got, err = io.ReadAll(resp.Stream)
	}
	if err != nil {
		var e *Error
		var te *transport.Error
		if !errors.As(err, &e) && !errors.As(err, &te) {
			t.Errorf("%s: %v", id, err)
		}
		return false, c.Cancel.Fired()
	}
	if status == 200 && (string(resp.Header.Get("x-id")) != id || len(bytes.ReplaceAll(got, []byte(id+" "), nil)) != 0) {
		t.Errorf("%s: got the answer of %q, %.100q", id, resp.Header.Get("x-id"), got)
	}
	return status == 200, false
}

package searchnode_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(searchtest.Main(m)) }

// call sends a request without a body and returns status and answer; status 0 means that there was none.
func call(t *testing.T, client *http.Client, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func TestEachEngineAnswersWithItsVersion(t *testing.T) {
	for engine, want := range map[string]string{
		searchnode.OpenSearch2:    "2.19.",
		searchnode.OpenSearch3:    "3.9.",
		searchnode.Elasticsearch7: "7.17.",
	} {
		t.Run(engine, func(t *testing.T) {
			c := searchtest.ForTest(t, engine, 1)
			status, body := call(t, newClient(t), http.MethodGet, c.URLs()[0])
			var info struct {
				Version struct{ Number string }
			}
			if err := json.Unmarshal([]byte(body), &info); err != nil || status != http.StatusOK {
				t.Fatalf("status %d, %v: %s", status, err, body)
			}
			if !strings.HasPrefix(info.Version.Number, want) {
				t.Errorf("got version %s, want %s*", info.Version.Number, want)
			}
		})
	}
}

func TestNodesStopAndComeBack(t *testing.T) {
	c := searchtest.ForTest(t, searchnode.OpenSearch2, 3)
	client := newClient(t)
	n, url := c.Node(2), c.URLs()[2]

	up := func(what string) {
		t.Helper()
		if err := c.WaitGreen(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if status, body := call(t, client, http.MethodGet, url); status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", what, status, body)
		}
	}
	down := func(what string) {
		t.Helper()
		if n.Running() {
			t.Fatalf("%s: still runs", what)
		}
		if status, _ := call(t, client, http.MethodGet, url); status != 0 {
			t.Fatalf("%s: status %d, want no answer", what, status)
		}
	}
	do := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	up("at first")
	do("stop", n.Stop())
	down("stopped")
	do("start after stop", n.Start(t.Context()))
	up("started after stop")
	do("kill", n.Kill())
	down("killed")
	do("start after kill", n.Start(t.Context()))
	up("started after kill")

	do("pause", n.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	do("make a request", err)
	if resp, err := client.Do(req); err == nil {
		resp.Body.Close()
		t.Fatal("a paused node answered")
	}
	do("resume", n.Resume())
	up("resumed")
}

func TestSharedClusterIsEmptiedBetweenTests(t *testing.T) {
	// A cluster in use, of another engine: without one, the shared cluster may make way for another process in between.
	searchtest.ForTest(t, searchnode.Elasticsearch7, 1)
	client := newClient(t)
	var urls []string
	t.Run("first", func(t *testing.T) {
		c := searchtest.ForTest(t, searchnode.OpenSearch2, 1)
		urls = c.URLs()
		if status, body := call(t, client, http.MethodPut, urls[0]+"/left-behind"); status != http.StatusOK {
			t.Fatalf("status %d: %s", status, body)
		}
	})
	t.Run("second", func(t *testing.T) {
		c := searchtest.ForTest(t, searchnode.OpenSearch2, 1)
		if c.URLs()[0] != urls[0] {
			t.Errorf("got another cluster: %s, then %s", urls[0], c.URLs()[0])
		}
		if status, _ := call(t, client, http.MethodGet, c.URLs()[0]+"/left-behind"); status != http.StatusNotFound {
			t.Errorf("the first test's index: status %d, want 404", status)
		}
	})
}

func TestSharedClusterIsReplacedWhenANodeIsMissing(t *testing.T) {
	t.Run("first", func(t *testing.T) {
		if err := searchtest.ForTest(t, searchnode.OpenSearch2, 1).Node(0).Kill(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("second", func(t *testing.T) {
		c := searchtest.ForTest(t, searchnode.OpenSearch2, 1)
		if status, body := call(t, newClient(t), http.MethodGet, c.URLs()[0]); status != http.StatusOK {
			t.Errorf("status %d: %s", status, body)
		}
	})
}

func TestSettingsReachTheNode(t *testing.T) {
	c := searchtest.Own(t, searchnode.Options{
		Engine: searchnode.OpenSearch2, Settings: map[string]string{"http.max_content_length": "1kb"},
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.URLs()[0]+"/a/_doc", strings.NewReader(strings.Repeat(" ", 2000)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := newClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", resp.StatusCode)
	}
}

// orphanEnv tells the test binary, run once more by TestNodesEndWithTheProcessThatStartedThem, to be that process.
const orphanEnv = "WEIR_SEARCHNODE_ORPHAN"

func TestNodesEndWithTheProcessThatStartedThem(t *testing.T) {
	if os.Getenv(orphanEnv) != "" {
		c, err := searchnode.Start(t.Context(), searchnode.Options{Engine: searchnode.OpenSearch2, Dir: os.Getenv(orphanEnv)})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(c.URLs()[0])
		<-t.Context().Done() // never: the parent kills this process
	}
	if reason, ok := searchnode.Find(searchnode.OpenSearch2); !ok {
		searchtest.Require(t, reason)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNodesEndWithTheProcessThatStartedThem$")
	cmd.Env = append(os.Environ(), orphanEnv+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	url = strings.TrimSpace(url)
	if err != nil || !strings.HasPrefix(url, "http://") {
		t.Fatalf("no address: %q, %v", url, err)
	}
	client := newClient(t)
	if status, body := call(t, client, http.MethodGet, url); status != http.StatusOK {
		t.Fatalf("before: status %d: %s", status, body)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // says that it was killed

	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(10 * time.Second); ; {
		if status, _ := call(t, client, http.MethodGet, url); status == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s still answers 10 s after its starter was killed", url)
		}
	}
}

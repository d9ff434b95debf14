package searchnode

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFindJDK(t *testing.T) {
	jdk := func(release string, tools ...string) string {
		home := t.TempDir()
		if err := os.MkdirAll(filepath.Join(home, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{filepath.Join(home, "release"): release}
		for _, tool := range tools {
			files[filepath.Join(home, "bin", tool)] = ""
		}
		for name, data := range files {
			if err := os.WriteFile(name, []byte(data), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return home
	}
	release := func(version string) string {
		return "IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"" + version + "\"\nOS_ARCH=\"x86_64\"\n"
	}
	java8 := jdk(release("1.8.0_402"), "java", "javac")
	runtime17 := jdk(release("17.0.15"), "java")
	java17 := jdk(release("17.0.15"), "java", "javac")
	java25 := jdk(release("25"), "java", "javac")
	nameless := jdk("nothing to see", "java", "javac")

	f := func(engine, want string, homes ...string) {
		t.Helper()
		e, err := engineNamed(engine)
		if err != nil {
			t.Fatal(err)
		}
		got, err := findJDK(e, homes)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", engine, got, err, want)
		}
	}
	f(OpenSearch2, java17, java8, java17, java25)
	f(OpenSearch2, java17, java25, java17)
	f(OpenSearch3, java25, java8, java17, java25)
	f(Elasticsearch7, java17, runtime17, java17)
	f(OpenSearch2, "", runtime17, java8, java25, nameless)
	f(OpenSearch3, "", java17)
	f(Elasticsearch7, "")
}

func TestFindNamesWhatIsMissing(t *testing.T) {
	f := func(engine, want string) {
		t.Helper()
		if reason, ok := Find(engine); ok || !strings.Contains(reason, want) {
			t.Errorf("%s: got %q, %v, want a reason with %q", engine, reason, ok, want)
		}
	}
	f("solr", "one of opensearch2")

	t.Setenv("JAVA_HOME", "")
	t.Setenv("PATH", t.TempDir())
	f(OpenSearch2, "no java on the PATH")
}

func TestStartSaysWhyItCannot(t *testing.T) {
	if _, err := Start(t.Context(), Options{Engine: "solr"}); err == nil || !strings.Contains(err.Error(), `unknown engine "solr"`) {
		t.Errorf("unknown engine: %v", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	if _, err := choosePorts(port, 1); err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) {
		t.Errorf("taken port: %v", err)
	}
}

// The launcher differs between engines only where it must, and nothing stays unfilled.
func TestLauncherSource(t *testing.T) {
	for _, e := range engines {
		source, err := e.launcherSource()
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(source), "\n") {
			if strings.Contains(line, "@") {
				t.Errorf("%s: unfilled word in %q", e.name, line)
			}
		}
		if !bytes.Contains(source, []byte("import "+e.root+".node.Node;")) {
			t.Errorf("%s: does not import %s", e.name, e.root)
		}
	}
}

func TestEachEngineHasAFolderOfItsOwn(t *testing.T) {
	seen := map[string]string{}
	for _, e := range engines {
		dir, err := e.cacheDir()
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[dir]; ok {
			t.Errorf("%s and %s share %s", e.name, other, dir)
		}
		seen[dir] = e.name
	}
}

func TestNodeSettings(t *testing.T) {
	ports := []nodePorts{{http: 9200, transport: 20001}, {http: 9201, transport: 20002}}
	common := []string{"network.host=127.0.0.1"}
	f := func(engine string, ports []nodePorts, want []string) {
		t.Helper()
		e, err := engineNamed(engine)
		if err != nil {
			t.Fatal(err)
		}
		nodes := nodeSettings(e, Options{Settings: map[string]string{"z": "1", "a": "2"}}, ports)
		var got []string
		for _, s := range nodes[len(nodes)-1] {
			if !strings.HasPrefix(s, "cluster.routing.") {
				got = append(got, s)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", engine, diff)
		}
	}
	f(OpenSearch2, ports[:1], []string{
		"node.name=n1", "cluster.name=weir-20001", common[0], "http.port=9200", "transport.port=20001",
		"discovery.type=single-node", "a=2", "z=1",
	})
	f(OpenSearch3, ports, []string{
		"node.name=n2", "cluster.name=weir-20001", common[0], "http.port=9201", "transport.port=20002",
		"discovery.seed_hosts=127.0.0.1:20001,127.0.0.1:20002", "cluster.initial_cluster_manager_nodes=n1,n2", "a=2", "z=1",
	})
	f(Elasticsearch7, ports, []string{
		"node.name=n2", "cluster.name=weir-20001", common[0], "http.port=9201", "transport.port=20002",
		"discovery.seed_hosts=127.0.0.1:20001,127.0.0.1:20002", "cluster.initial_master_nodes=n1,n2", "a=2", "z=1",
	})
}

// fakeCluster is a cluster whose nodes are shell scripts, for what needs no engine.
func fakeCluster(t *testing.T, script string) *Cluster {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}, Timeout: time.Second}
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{
		url: "http://127.0.0.1:" + strconv.Itoa(ports[0]), client: client,
		command: []string{"sh", "-c", script}, log: filepath.Join(t.TempDir(), "n1.log"),
	}
	c := &Cluster{nodes: []*Node{n}, client: client}
	if err := n.launch(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestANodeThatEndsByItselfIsReportedWithItsLog(t *testing.T) {
	c := fakeCluster(t, "echo no such setting; exit 3")
	err := c.WaitGreen(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no such setting") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
	if c.Node(0).Running() {
		t.Error("runs")
	}
}

func TestWaitGreenEndsWithItsContext(t *testing.T) {
	c := fakeCluster(t, "cat")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.WaitGreen(ctx); err == nil || !strings.Contains(err.Error(), "not green") {
		t.Errorf("got %v", err)
	}
}

func TestCallsOnANodeInTheWrongState(t *testing.T) {
	n := fakeCluster(t, "cat").Node(0)
	if err := n.Start(t.Context()); err == nil {
		t.Error("started twice")
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{"stop": n.Stop, "kill": n.Kill, "pause": n.Pause, "resume": n.Resume} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "does not run") {
			t.Errorf("%s of a dead node: %v", name, err)
		}
	}
}

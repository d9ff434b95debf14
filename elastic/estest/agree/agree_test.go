package agree_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"weir/elastic/estest"
	"weir/elastic/estest/agree"
)

var (
	node   = flag.String("node", "", "URL of a real node to run the cases against; its indices agree* are deleted")
	engine = flag.String("engine", "", "engine of that node: elasticsearch7, opensearch2, opensearch3")
	update = flag.Bool("update", false, "write the node's answers as those of its engine into testdata/agree.txtar")
)

func TestCasesHaveAnswers(t *testing.T) {
	for _, c := range cases(t) {
		if c.Want("elasticsearch7") == "" || c.Want("opensearch3") == "" {
			t.Errorf("case %q has no answer for each engine", c.Name)
		}
	}
}

func TestRealNodeAgrees(t *testing.T) {
	if *node == "" {
		t.Skip("no -node given")
	}
	run(t, strings.TrimRight(*node, "/"), *engine)
}

func TestEstestAgrees(t *testing.T) {
	for name, flavor := range map[string]estest.Flavor{
		"elasticsearch7": estest.Elasticsearch7, "opensearch2": estest.OpenSearch2, "opensearch3": estest.OpenSearch3,
	} {
		t.Run(name, func(t *testing.T) { run(t, estest.New(t, estest.Options{Flavor: flavor}).URL(), name) })
	}
}

func run(t *testing.T, url, engine string) {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(client.CloseIdleConnections)
	answers := map[string]string{}
	for _, c := range cases(t) {
		got, err := c.Send(t.Context(), client, url)
		if err != nil {
			t.Fatal(err)
		}
		answers[c.Name] = got
		if diff := cmp.Diff(c.Want(engine), got); diff != "" && !*update {
			t.Errorf("%s: %s %s: answer differs (-want +got):\n%s", c.Name, c.Method, c.Target, diff)
		}
	}
	if *update && *node != "" && !t.Failed() {
		if err := rewrite(answers, engine); err != nil {
			t.Fatal(err)
		}
	}
}

// rewrite puts a node's answers into the file: as the answer of all engines where there is none yet, and as that of the
// engine where it differs.
func rewrite(answers map[string]string, engine string) error {
	const file = "testdata/agree.txtar"
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	old := txtar.Parse(data)
	out := &txtar.Archive{Comment: old.Comment}
	all, err := agree.Cases()
	if err != nil {
		return err
	}
	for _, c := range all {
		text := fmt.Sprintf("%s %s\n%s", c.Method, c.Target, c.Body)
		out.Files = append(out.Files, txtar.File{Name: c.Name, Data: []byte(text)})
		if c.Want(engine) == "" {
			c.Answers[""] = answers[c.Name]
		} else if c.Want(engine) != answers[c.Name] {
			c.Answers[engine] = answers[c.Name]
		}
		if c.Answers["opensearch2"] != "" && c.Answers["opensearch2"] == c.Answers["opensearch3"] {
			c.Answers["opensearch"] = c.Answers["opensearch2"]
			delete(c.Answers, "opensearch2")
			delete(c.Answers, "opensearch3")
		}
		for _, name := range []string{"", "elasticsearch", "elasticsearch7", "opensearch", "opensearch2", "opensearch3"} {
			if text, ok := c.Answers[name]; ok {
				out.Files = append(out.Files, txtar.File{Name: strings.TrimSpace("answer " + name), Data: []byte(text)})
			}
		}
	}
	return os.WriteFile(file, txtar.Format(out), 0o644)
}

func cases(t *testing.T) []agree.Case {
	t.Helper()
	all, err := agree.Cases()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

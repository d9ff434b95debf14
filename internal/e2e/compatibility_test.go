package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"weir/internal/searchnode"
)

// TestCompatibilityPage holds docs/compatibility.md: the versions are those that are tested, the numbers of requests those
// that are sent.
func TestCompatibilityPage(t *testing.T) {
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read("../../docs/compatibility.md")
	want := func(row string) {
		t.Helper()
		if !strings.Contains(page, "\n"+row) {
			t.Errorf("docs/compatibility.md lacks the row\n%s", row)
		}
	}
	version := func(path, pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(read(path))
		if m == nil {
			t.Fatalf("%s has nothing that matches %s", path, pattern)
		}
		return m[1]
	}

	for engine, product := range map[string]string{searchnode.Elasticsearch7: "Elasticsearch", searchnode.OpenSearch2: "OpenSearch", searchnode.OpenSearch3: "OpenSearch"} {
		pom := "../searchnode/assets/engines/" + engine + "/pom.xml"
		want(fmt.Sprintf("| %s | %s |", product, version(pom, `<artifactId>`+strings.ToLower(product)+`</artifactId><version>([0-9.]+)<`)))
	}
	want("| elasticsearch-py | " + version("clients/requirements.txt", `(?m)^elasticsearch==(\S+)`) + " |")
	want("| opensearch-py | " + version("clients/requirements.txt", `(?m)^opensearch-py==(\S+)`) + " |")
	want("| @elastic/elasticsearch (Node.js) | " + version("clients/package.json", `"@elastic/elasticsearch": "([^"]+)"`) + " |")
	want("| @opensearch-project/opensearch (Node.js) | " + version("clients/package.json", `"@opensearch-project/opensearch": "([^"]+)"`) + " |")
	want("| go-elasticsearch | " + version("../../go.mod", `elastic/go-elasticsearch/v8 v(\S+)`) + " |")
	want("| Java low-level client with sniffer | " + version("clients/java/pom.xml", `<version>(7[0-9.]+)</version>`) + " |")
	want("| elasticdump | " + version("clients/package.json", `"elasticdump": "([^"]+)"`) + " |")

	counts := map[string][2]int{}
	var kinds []string
	for i, engine := range []string{searchnode.Elasticsearch7, searchnode.OpenSearch2} {
		for _, p := range append(apiProbes(t, engine), oddProbes(engine)...) {
			n, seen := counts[p.kind]
			if !seen {
				kinds = append(kinds, p.kind)
			}
			n[i]++
			counts[p.kind] = n
		}
	}
	for _, kind := range kinds {
		want(fmt.Sprintf("| %s | %d | %d |", kind, counts[kind][0], counts[kind][1]))
	}
	want(fmt.Sprintf("%d answers of %d MB each", atOnce, largeAnswer>>20))
	want(fmt.Sprintf("%d bulks of %d MB each", slowSenders, slowBulk>>20))
	if rest := fmt.Sprintf("falls below %d MB", restingLimit>>20); !strings.Contains(page, rest) {
		t.Errorf("docs/compatibility.md does not say that memory %s", rest)
	}
	if bound := fmt.Sprintf("memory stays below %d MB", residentLimit>>20); !strings.Contains(page, bound) {
		t.Errorf("docs/compatibility.md does not say that %s", bound)
	}
}

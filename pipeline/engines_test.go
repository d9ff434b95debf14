package pipeline

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/searchnode"
	"weir/internal/searchnode/searchtest"
)

// TestRealEngines installs the template on real nodes and delivers records, twice, with a poisoned one among them.
func TestRealEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("real engines take their time")
	}
	everything, err := os.ReadFile("../filters/log/testdata/record.json")
	if err != nil {
		t.Fatal(err)
	}
	id := idIn(t, everything)
	for _, engine := range []string{searchnode.Elasticsearch7, searchnode.OpenSearch2, searchnode.OpenSearch3} {
		t.Run(engine, func(t *testing.T) {
			c := searchtest.ForTest(t, engine, 1)
			r := newRigAt(t, c.URLs()[0], nil)
			if err := r.setup("gateway"); err != nil {
				t.Fatal(err)
			}
			r.do("PUT", "/gateway_requests", "{}")
			before := r.mapping()
			var list []string
			for n := range 300 {
				list = append(list, strings.Replace(strings.TrimSpace(string(everything)), id, fmt.Sprintf("id-%d", n), 1))
			}
			poison := strings.Replace(list[0], `"192.0.2.7"`, `"nowhere"`, 1)
			list = append(list, strings.Replace(poison, "id-0", "poison", 1))
			plan := r.planOf("consumers: 2, json_indexing: {index_name: gateway_requests, elasticsearch: default, input_queue: requests, worker_size: 2, bulk_size: 70}")
			running := r.run(plan)
			r.put(list...)
			r.put(list...)
			r.drained()
			r.stop(running)
			r.get("/gateway_requests/_refresh")
			if body := string(r.get("/gateway_requests/_count")); !strings.Contains(body, `"count":300,`) {
				t.Errorf("want 300 documents: %s", body)
			}
			if diff := cmp.Diff(before, r.mapping()); diff != "" {
				t.Errorf("fields that are not in the template:\n%s", diff)
			}
			r.wantRecords("duplicate", 300)
			r.letters(2)
		})
	}
}

// idIn returns the event.id of a record.
func idIn(t testing.TB, record []byte) string {
	t.Helper()
	var r struct{ Event struct{ ID string } }
	if err := json.Unmarshal(record, &r); err != nil {
		t.Fatal(err)
	}
	return r.Event.ID
}

package e2e

import "testing"

// plainFile has an entry, a flow and a cluster, and nothing that keeps or limits anything.
const plainFile = `entry:
  - {name: main, router: main, network: {binding: ADDRESS}}
router:
  - {name: main, default_flow: main}
flow:
  - name: main
    filter:
      - elasticsearch: {elasticsearch: default}
elasticsearch:
  - {name: default, endpoint: CLUSTER}
`

// newPlainSite makes a site that only passes on, with filters (YAML, each line indented as in the file) above the one that does.
func newPlainSite(tb testing.TB, cluster, filters string, edits ...edit) *site {
	tb.Helper()
	s := &site{tb: tb, dir: tb.TempDir(), addr: freeAddress(tb), admin: freeAddress(tb), text: plainFile}
	edits = append([]edit{swap("ADDRESS", s.addr), swap("CLUSTER", cluster), swap("    filter:\n", "    filter:\n"+filters)}, edits...)
	for _, e := range edits {
		s.text = e(tb, s.text)
	}
	s.write("gateway.yml", s.text)
	s.write("admin.yml", "admin: {binding: "+s.admin+"}\n")
	return s
}

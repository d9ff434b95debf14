package estest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A table is the answer of a _cat API. Columns whose name begins with one of right's are right-aligned.
type table struct {
	columns []string
	right   []bool
	rows    [][]string
}

// answer writes the table as text or, with format=json, as a list of objects; h selects columns, v adds their names and s
// sorts by columns.
func (t *table) answer(r *request) (answer, error) {
	if by := r.params["s"]; by != "" {
		t.sort(by)
	}
	if h := r.params["h"]; h != "" {
		t.choose(strings.Split(h, ","))
	}
	if r.params["format"] == "json" || strings.HasPrefix(r.Header.Get("Accept"), "application/json") {
		list := []any{}
		for _, row := range t.rows {
			o := object{}
			for i, c := range t.columns {
				o = append(o, member{c, row[i]})
			}
			list = append(list, o)
		}
		return answer{value: list}, nil
	}
	rows := t.rows
	if r.flag("v") {
		rows = append([][]string{t.columns}, rows...)
	}
	width := make([]int, len(t.columns))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	var out []byte
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				out = append(out, ' ')
			}
			if t.right[i] {
				out = fmt.Appendf(out, "%*s", width[i], cell)
			} else if i == len(row)-1 {
				out = append(out, cell...)
			} else {
				out = fmt.Appendf(out, "%-*s", width[i], cell)
			}
		}
		out = append(out, '\n')
	}
	return answer{body: out, contentType: "text/plain; charset=UTF-8"}, nil
}

func (t *table) sort(by string) {
	slices.SortStableFunc(t.rows, func(a, b []string) int {
		for column := range strings.SplitSeq(by, ",") {
			name, order, _ := strings.Cut(column, ":")
			i := slices.Index(t.columns, name)
			if i < 0 {
				continue
			}
			c := cmp.Compare(a[i], b[i])
			x, errX := strconv.Atoi(a[i])
			y, errY := strconv.Atoi(b[i])
			if errX == nil && errY == nil {
				c = cmp.Compare(x, y)
			}
			if order == "desc" {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return 0
	})
}

func (t *table) choose(names []string) {
	chosen := table{rows: make([][]string, len(t.rows))}
	for _, name := range names {
		i := slices.Index(t.columns, name)
		if i < 0 {
			continue
		}
		chosen.columns = append(chosen.columns, name)
		chosen.right = append(chosen.right, t.right[i])
		for j, row := range t.rows {
			chosen.rows[j] = append(chosen.rows[j], row[i])
		}
	}
	*t = chosen
}

func catIndices(r *request) (answer, error) {
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	t := &table{
		columns: []string{"health", "status", "index", "uuid", "pri", "rep", "docs.count", "docs.deleted", "store.size", "pri.store.size"},
		right:   []bool{false, false, false, false, true, true, true, true, true, true},
	}
	nodes := len(r.c.runningNodes())
	for _, ix := range indices {
		ix.tick(r.now)
		docs, deleted := ix.docs()
		wanted, assigned := ix.replicas(nodes)
		size := ix.bytes()
		t.rows = append(t.rows, []string{
			ix.health(nodes), "open", ix.name, ix.uuid, strconv.Itoa(len(ix.shards)), strconv.Itoa(wanted), strconv.Itoa(docs),
			strconv.Itoa(deleted), byteSize(size * (1 + assigned)), byteSize(size),
		})
	}
	return t.answer(r)
}

// bytes is the size of the sources.
func (ix *index) bytes() int {
	n := 0
	for _, s := range ix.shards {
		for _, d := range s.live {
			n += len(d.source)
		}
	}
	return n
}

func byteSize(n int) string {
	f := float64(n)
	for _, unit := range []string{"b", "kb", "mb", "gb"} {
		if f < 1024 || unit == "gb" {
			return strings.TrimSuffix(strconv.FormatFloat(float64(int(f*10))/10, 'f', 1, 64), ".0") + unit
		}
		f /= 1024
	}
	return ""
}

func catNodes(r *request) (answer, error) {
	t := &table{
		columns: []string{"ip", "heap.percent", "ram.percent", "cpu", "load_1m", "load_5m", "load_15m", "node.role", "master", "name"},
		right:   []bool{false, true, true, true, true, true, true, false, false, false},
	}
	role, master := "cdfhimrsw", "master"
	if r.c.details.opensearch {
		role, master = "dimr", "cluster_manager"
	}
	t.columns[8] = master
	for i, n := range r.c.runningNodes() {
		host, _, _ := strings.Cut(n.Addr(), ":")
		mark := "-"
		if i == 0 {
			mark = "*"
		}
		t.rows = append(t.rows, []string{host, "10", "50", "1", "0.10", "0.10", "0.10", role, mark, n.name})
	}
	return t.answer(r)
}

func catHealth(r *request) (answer, error) {
	indices, err := r.resolve("")
	if err != nil {
		return answer{}, err
	}
	primaries, active, unassigned := r.shardCounts(indices)
	status, percent := "green", 100.0
	if unassigned > 0 {
		status = "yellow"
		percent = 100 * float64(active) / float64(active+unassigned)
	}
	nodes := strconv.Itoa(len(r.c.runningNodes()))
	t := &table{
		columns: []string{"epoch", "timestamp", "cluster", "status", "node.total", "node.data"},
		rows:    [][]string{{strconv.FormatInt(r.now.Unix(), 10), r.now.UTC().Format("15:04:05"), r.c.o.Name, status, nodes, nodes}},
	}
	if r.c.details.opensearch {
		t.columns = append(t.columns, "discovered_cluster_manager")
		t.rows[0] = append(t.rows[0], "true")
	}
	t.columns = append(t.columns, "shards", "pri", "relo", "init", "unassign", "pending_tasks", "max_task_wait_time", "active_shards_percent")
	t.rows[0] = append(t.rows[0], strconv.Itoa(active), strconv.Itoa(primaries), "0", "0", strconv.Itoa(unassigned), "0", "-",
		strconv.FormatFloat(percent, 'f', 1, 64)+"%")
	t.right = make([]bool, len(t.columns))
	for i := 4; i < len(t.right); i++ {
		t.right[i] = true
	}
	return t.answer(r)
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	f := func(stat string, want processStat, ok bool) {
		t.Helper()
		got, err := parseStat(stat)
		if (err == nil) != ok {
			t.Errorf("%q: error %v", stat, err)
		}
		if got != want {
			t.Errorf("%q: got %+v, want %+v", stat, got, want)
		}
	}
	tail := " S 7 1 1 0 -1 4194560 1 0 0 0 150 25 900 900 20 0 1 0 100 1000000 30 18446744073709551615 0\n"
	want := processStat{parent: 7, cpu: 1750 * time.Millisecond, rss: 30 * int64(os.Getpagesize())}
	f("42 (nginx)"+tail, want, true)
	f("42 (a ) b (c))"+tail, want, true)
	f("42 nginx S 7", processStat{}, false)
	f("42 (nginx) S 7 1", processStat{}, false)
	f("42 (nginx) S x 1 1 0 -1 4194560 1 0 0 0 150 25 900 900 20 0 1 0 100 1000000 30 1", processStat{}, false)
}

func TestSumTreeCountsDescendantsOnce(t *testing.T) {
	all := map[int]processStat{
		1:  {parent: 0, cpu: 100 * time.Second, rss: 1000},
		10: {parent: 1, cpu: time.Second, rss: 1},
		11: {parent: 10, cpu: 2 * time.Second, rss: 2},
		12: {parent: 11, cpu: 4 * time.Second, rss: 4},
		20: {parent: 1, cpu: 50 * time.Second, rss: 500},
	}
	if cpu, rss := sumTree(all, 10); cpu != 7*time.Second || rss != 7 {
		t.Errorf("got %v and %d bytes, want 7s and 7 bytes", cpu, rss)
	}
}

func TestParseLoad(t *testing.T) {
	const good = "bench requests=300 duration_us=3000000 bytes=30000 connect=0 read=0 write=0 status=0 timeout=0 p50_us=10 p99_us=20\n"
	f := func(out string, want load, ok bool) {
		t.Helper()
		got, err := parseLoad(out)
		if (err == nil) != ok {
			t.Errorf("%q: error %v", out, err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(load{})); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", out, diff)
		}
	}
	want := load{requests: 300, bytes: 30000, duration: 3 * time.Second, p50: 10 * time.Microsecond, p99: 20 * time.Microsecond}
	f("Running 3s test\n"+good, want, true)
	want.errors, want.refused = []string{"status=7", "timeout=2"}, 7
	f(strings.NewReplacer("status=0", "status=7", "timeout=0", "timeout=2").Replace(good), want, true)
	f("Running 3s test\n", load{}, false)
	f("bench requests=300\n", load{}, false)
	f("bench requests=many\n", load{}, false)
}

func TestParseComparisons(t *testing.T) {
	const out = `BenchmarkWriteAgainstDD
BenchmarkWriteAgainstDD/block-2         	       5	1979769863 ns/op	  33.90 MB/s	         1.561 queue/dd
BenchmarkWriteAgainstDD/block,zstd      	       5	1000137576 ns/op	  67.10 MB/s	         0.413 queue/dd
BenchmarkWriteAgainstDD/never
--- SKIP: BenchmarkWriteAgainstDD/never
BenchmarkDrainAgainstBulkIndexer-16   	       5	86176724680 ns/op	         1.166 drain/indexer	       510.6 drained/s
BenchmarkPut-2   	       5	86 ns/op
PASS
`
	found := parseComparisons(out)
	want := [][]string{
		{"", "weir to it", "aim"},
		{comparisons[0].title, "1.56", "0.50: met"},
		{comparisons[1].title, "0.41", "0.50: missed"},
		{comparisons[3].title, "1.17", "0.90: met"},
	}
	if diff := cmp.Diff(want, comparisonTable(found)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if missed := (report{records: found}).missed(); len(missed) != 1 {
		t.Errorf("missed %q, want the one", missed)
	}
}

func TestValid(t *testing.T) {
	f := func(l load, want string) {
		t.Helper()
		err := l.valid(100, 10)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: got %v, want %q", l, err, want)
		}
	}
	good := load{requests: 1000, bytes: 100_000, duration: time.Second}
	f(good, "")
	half := good
	half.bytes = 50_000
	f(half, "wrong size")
	double := good
	double.bytes = 200_000
	f(double, "wrong size")
	none := good
	none.requests = 0
	f(none, "0 requests")
	faulty := good
	faulty.errors = []string{"status=1"}
	f(faulty, "status=1")
}

func TestForwarded(t *testing.T) {
	f := func(use upstreamUse, requests, searches int64, ok bool) {
		t.Helper()
		err := (&harness{}).forwarded(benchCase{upstream: use}, measurement{load: load{requests: requests}, searches: searches})
		if (err == nil) != ok {
			t.Errorf("use %d, %d requests, %d searches: %v", use, requests, searches, err)
		}
	}
	f(noUpstream, 1000, 0, true)
	f(upstreamOnce, 1000, 3, true)
	f(upstreamOnce, 1000, 1000, false)
	f(upstreamEvery, 1000, 1010, true)
	f(upstreamEvery, 1000, 3, false)
}

// measured returns a row whose rounds have these requests in one second and one CPU-second.
func measured(name string, requests ...int64) row {
	r := row{name: name}
	for _, n := range requests {
		r.rounds = append(r.rounds, measurement{load: load{requests: n, duration: time.Second}, cpu: time.Second})
	}
	return r
}

func TestMedian(t *testing.T) {
	f := func(want float64, values ...float64) {
		t.Helper()
		if got := median(values); got != want {
			t.Errorf("%v: got %v, want %v", values, got, want)
		}
	}
	f(0)
	f(3, 3)
	f(2, 3, 2, 1)
	f(2.5, 4, 1, 3, 2)
}

// A machine that is slow in one round slows both, so the ratio is taken within rounds.
func TestRatioIsTakenWithinRounds(t *testing.T) {
	weir, peer := measured("weir", 900, 9, 900), measured("nginx", 1000, 10, 1000)
	if got := ratio(weir, peer, measurement.perSecond); got != 0.9 {
		t.Errorf("got %v, want 0.9", got)
	}
}

func TestMissedAims(t *testing.T) {
	c := benchCase{name: "hit-1k", title: "x", aims: map[string]float64{"nginx": 1}}
	f := func(r result, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, r.missed()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	f(result{c, []row{measured("weir", 100), measured("nginx", 100)}})
	f(result{c, []row{measured("weir", 99), measured("nginx", 100)}}, "hit-1k, nginx: aim 1.00")
	f(result{c, []row{measured("weir", 1), measured("haproxy", 100)}})
	f(result{c, []row{measured("nginx", 100)}})

	idleOf := func(cost int64) result {
		return result{benchCase{name: idleCase, title: "x"}, []row{{name: "weir", idle: idle{1, 1 + cost}}, {name: "nginx", idle: idle{1, 1 << 40}}}}
	}
	f(idleOf(idleAimBytes - 1))
	f(idleOf(idleAimBytes), "idle, weir: aim under 20.0 MB")
}

func TestMarkdownHasWholeTables(t *testing.T) {
	c := benchCase{name: "echo", title: "echo", aims: map[string]float64{"nginx": 0.5}}
	page := report{results: []result{{c, []row{measured("weir", 100), measured("nginx", 100)}}}}.markdown()
	columns := 0
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		n := strings.Count(line, "|")
		if columns == 0 {
			columns = n
		}
		if n != columns {
			t.Errorf("%d bars, want %d: %s", n, columns, line)
		}
	}
	if columns == 0 || !strings.Contains(page, "0.50: met") {
		t.Errorf("no table with the aim:\n%s", page)
	}
}

func TestVersionLine(t *testing.T) {
	f := func(name, line, want string) {
		t.Helper()
		if got := versionLine(name, line); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
	f("nginx", "nginx version: nginx/1.22.1", "nginx: 1.22.1")
	f("haproxy", "HAProxy version 2.6.12-1+deb12u4 2026/10/17", "haproxy: 2.6.12-1+deb12u4")
	f("varnish", "varnishd (varnish-7.1.1 revision 7cee1c58)", "varnish: 7.1.1")
	f("wrk", "wrk debian/4.1.0-3+b2 [epoll]", "wrk: 4.1.0-3+b2")
	f("wrk", "wrk [epoll]", "wrk: wrk [epoll]")
}

// The peers themselves say whether the configurations that the harness writes are good.
func TestPeersAcceptTheirConfigurations(t *testing.T) {
	all := append(slices.Clone(cases), benchCase{name: "traps", targets: trapTargets})
	for _, c := range all {
		for _, target := range c.targets {
			var check []string
			switch target.name {
			case "nginx":
				check = []string{"nginx", "-t", "-c"}
			case "haproxy":
				check = []string{"haproxy", "-c", "-f"}
			default:
				continue
			}
			t.Run(c.name+"/"+target.name, func(t *testing.T) {
				if _, err := exec.LookPath(check[0]); err != nil {
					t.Skipf("%s is not installed", check[0])
				}
				dir := t.TempDir()
				config, err := writeConfig(target, dir, "127.0.0.1:20001", "127.0.0.1:20002")
				if err != nil {
					t.Fatal(err)
				}
				if filepath.Dir(config) != dir {
					t.Errorf("written to %s, want %s", config, dir)
				}
				if out, err := exec.CommandContext(t.Context(), check[0], append(check[1:], config)...).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
	}
}

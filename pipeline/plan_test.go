package pipeline

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/conf"
)

const classic = `
name: pipeline
enabled: true
runners:
  - {name: primary, enabled: true, max_go_routine: 1, threshold_in_ms: 0, timeout_in_ms: 5000, pipeline_id: request_logging_index}
pipelines:
  - name: request_logging_index
    start:
      joint: json_indexing
      enabled: true
      parameters:
        index_name: "gateway_requests"
        elasticsearch: "default"
        input_queue: "request_logging"
        num_of_messages: 1
        timeout: "60s"
        worker_size: 6
        bulk_size: 5000
    process: []
`

// classicWarnings are what is read otherwise than it was meant there.
var classicWarnings = []string{
	"5:90: warning: runner primary: timeout_in_ms ended a run; now a pipeline runs until it is stopped: leave it out",
	`15:9: warning: pipeline request_logging_index: json_indexing: "num_of_messages" is deprecated: records come in blocks, as many as there are; bulk_size bounds a request`,
	"18:20: warning: pipeline request_logging_index: bulk_size was the size of a bulk request; now it is the most records of one, and max_bytes bounds its size",
}

// read makes plans of text, a module or a list.
func read(t *testing.T, text string) ([]*Plan, []string) {
	t.Helper()
	n, p := conf.Parse("test.yml", text, nil)
	var plans []*Plan
	if n.Kind() == conf.Map {
		plans = BuildModule(Processors(), n, names, p)
	} else {
		plans = Build(Processors(), n, names, p)
	}
	var problems []string
	for _, q := range p.Sorted() {
		problems = append(problems, strings.TrimPrefix(q.String(), "test.yml:"))
	}
	return plans, problems
}

func TestClassicModule(t *testing.T) {
	plans, problems := read(t, classic)
	if len(plans) != 1 || plans[0].Name != "request_logging_index" {
		t.Fatalf("%d plans, problems %q", len(plans), problems)
	}
	if diff := cmp.Diff(classicWarnings, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	want := defaultBulk()
	want.Elasticsearch, want.InputQueue, want.WorkerSize = "default", "request_logging", 6
	d := plans[0].processor.(*drain)
	o := d.outlet.(*bulkOutlet)
	if diff := cmp.Diff(want, o.config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if o.form().index() != "gateway_requests" || d.Input() != "request_logging" || d.settings != (Settings{Consumers: 1}) {
		t.Errorf("index %s, queue %s, settings %s", o.form().index(), d.Input(), d.settings)
	}
}

const short = "- {name: a, json_indexing: {index_name: i, elasticsearch: default, input_queue: q}}"

func TestSwitchedOff(t *testing.T) {
	f := func(text string) {
		t.Helper()
		plans, problems := read(t, text)
		problems = slices.DeleteFunc(problems, func(s string) bool { return strings.Contains(s, "warning: ") })
		if len(plans) > 0 || len(problems) > 0 {
			t.Errorf("%d plans, problems %q", len(plans), problems)
		}
	}
	without := func(old, fresh string) string {
		t.Helper()
		out := strings.Replace(classic, old, fresh, 1)
		if out == classic {
			t.Fatalf("%q is not in the text", old)
		}
		return out
	}
	f(without("enabled: true", "enabled: false"))
	f(without("name: primary, enabled: true", "name: primary, enabled: false"))
	f(without("json_indexing\n      enabled: true", "json_indexing\n      enabled: false"))
	f(without(`elasticsearch: "default"`, `elasticsearch: "off"`))
	f(strings.Replace(short, "name: a", "name: a, enabled: false", 1))
	f(strings.Replace(short, "default", "off", 1))
	f("[]")
}

func TestProblems(t *testing.T) {
	plain := strings.NewReplacer("timeout_in_ms: 5000", "timeout_in_ms: 0", "num_of_messages: 1", "max_bytes: 1mb", "bulk_size: 5000", "").Replace(classic)
	f := func(text string, want ...string) {
		t.Helper()
		if _, got := read(t, text); !slices.Equal(got, want) {
			t.Errorf("%s\ngot  %q\nwant %q", text, got, want)
		}
	}
	f(strings.Replace(short, "elasticsearch: default", "elasticsearch: defualt", 1),
		`1:59: pipeline a: json_indexing: no elasticsearch called "defualt"; did you mean "default"?`)
	f(strings.Replace(short, "json_indexing", "jsn_indexing", 1),
		`1:13: pipeline a: unknown processor "jsn_indexing"; there are ["bulk_indexing" "dag" "dead_letter" "file" "json_indexing" "queue_consumer" "stdout"]; did you mean "json_indexing"?`)
	f(strings.Replace(short, "input_queue: q", "input_queue: a/b, index_nam: i", 1),
		`1:86: pipeline a: json_indexing: unknown field "index_nam"; did you mean "index_name"?`)
	f(strings.Replace(short, "input_queue: q", "input_queue: a/b", 1),
		`1:81: pipeline a: json_indexing: queue name "a/b.dead": character '/' at 1: use letters, digits, '_', and '.' or '-' after the first`)
	f(strings.Replace(short, "index_name: i", "index_name: Logs", 1),
		`1:41: pipeline a: json_indexing: index name "Logs" has capital letters`)
	f("- {name: a}", `1:3: pipeline a: a pipeline has one processor, as in {name: x, json_indexing: {...}}; here are 0: `)
	f(short+"\n"+strings.Replace(short, "queue: q", "queue: r", 1), `2:3: pipeline a: pipeline "a" is defined twice; first at test.yml:1:3`)
	f(short+"\n"+strings.Replace(short, "name: a", "name: b", 1),
		`2:3: pipeline b: queue "q" has a consumer already, pipeline "a" at test.yml:1:3`)
	f(strings.Replace(plain, "pipeline_id: request_logging_index", "pipeline_id: request_loging_index", 1),
		`5:106: runner primary: no pipeline called "request_loging_index"; did you mean "request_logging_index"?`,
		`7:5: warning: pipeline request_logging_index: no runner runs the pipeline`)
	two := strings.Replace(plain, "pipelines:\n", "pipelines:\n  - {name: b, start: {joint: json_indexing, parameters: {index_name: i, elasticsearch: default, input_queue: request_logging}}}\n", 1)
	f(strings.Replace(two, "runners:\n", "runners:\n  - {pipeline_id: b}\n", 1),
		`9:5: pipeline request_logging_index: queue "request_logging" has a consumer already, pipeline "b" at test.yml:8:5`)
	f(strings.Replace(plain, "process: []", "process: [{joint: x}]", 1),
		`19:14: pipeline request_logging_index: a pipeline has one processor, the joint that it starts with`)
	f(strings.Replace(short, "{index_name: i, elasticsearch: default, input_queue: q}", "{index_name: i, elasticsearch: default}", 1),
		`1:28: pipeline a: json_indexing: the queue that records are taken from is missing`)
	f("- {name: a, consumers: 2, dag: {input_queue: q, parallel: [{bulk_indexing: {elasticsearch: default}}]}}",
		`1:76: pipeline a: dag: bulk_indexing: the order of actions upon a document needs one consumer; worker_size is how many requests it sends at a time`)
	f("- {name: a, consumers: 2, bulk_indexing: {elasticsearch: default, input_queue: q}}",
		`1:42: pipeline a: bulk_indexing: the order of actions upon a document needs one consumer; worker_size is how many requests it sends at a time`)
	f("- {name: a, consumers: 65, stdout: {input_queue: q}}", `1:24: consumers: want at most 64, found the number "65"`)
	f("- {name: a, dag: {input_queue: q, parallel: [{stdout: {input_queue: q}}, {file: {path: x}, stdout: {}}, {none: {}}]}}",
		`1:69: pipeline a: dag: stdout: within a dag the queue is that of the dag: leave it out`,
		`1:74: pipeline a: dag: a processor, as in {json_indexing: {...}}, has one name; here are 2`,
		`1:106: pipeline a: dag: unknown processor "none"; there are ["bulk_indexing" "dag" "dead_letter" "file" "json_indexing" "queue_consumer" "stdout"]`)
	f("- {name: a, dag: {input_queue: q, parallel: []}}", `1:45: pipeline a: dag: a dag needs processors in parallel`)
}

func TestRunnerSettings(t *testing.T) {
	text := strings.Replace(strings.Replace(classic, "max_go_routine: 1", "max_go_routine: 4", 1), "threshold_in_ms: 0", "threshold_in_ms: 100", 1)
	plans, problems := read(t, text)
	if len(plans) != 1 {
		t.Fatalf("%q", problems)
	}
	if s := plans[0].processor.(*drain).settings; s.Consumers != 4 || s.Pause.Std() != 100*time.Millisecond {
		t.Errorf("settings %s", s)
	}
}

func TestKeyTellsPlansApart(t *testing.T) {
	key := func(text string) string {
		t.Helper()
		plans, problems := read(t, text)
		if len(plans) != 1 {
			t.Fatalf("%d plans, %q", len(plans), problems)
		}
		return plans[0].Key()
	}
	if key(short) != key("# moved\n"+short) {
		t.Error("the same pipeline has two keys")
	}
	if key(short) != key(strings.Replace(short, "queue: q", "queue: q, timeout: 60s", 1)) {
		t.Error("a default that is written down makes another key")
	}
	for _, other := range []string{
		strings.Replace(short, "name: a", "name: b", 1), strings.Replace(short, "queue: q", "queue: r", 1),
		strings.Replace(short, "name: a", "name: a, consumers: 2", 1), strings.Replace(short, "name: a", "name: a, pause: 1s", 1),
		strings.Replace(short, "queue: q", "queue: q, timeout: 61s", 1), strings.Replace(short, "queue: q", "queue: q, max_bytes: 1mb", 1),
	} {
		if key(short) == key(other) {
			t.Errorf("%s has the same key as %s", other, short)
		}
	}
	const dag = "- {name: a, dag: {input_queue: q, parallel: [{stdout: {}}, {file: {path: f}}]}}"
	if moved := "- {name: a, dag: {input_queue: q, parallel: [{stdout: {}}], end: [{file: {path: f}}]}}"; key(dag) == key(moved) {
		t.Errorf("%s has the same key as %s", moved, dag)
	}
}

func TestExamplesLoad(t *testing.T) {
	for _, k := range Processors().Kinds() {
		if len(k.Examples) == 0 || k.Summary == "" {
			t.Errorf("%s has no example or no summary", k.Name)
		}
		for _, e := range k.Examples {
			if plans, problems := read(t, e.YAML); len(plans) != 1 || len(problems) > 0 {
				t.Errorf("%s: %s: %q", k.Name, e.Title, problems)
			}
		}
	}
}

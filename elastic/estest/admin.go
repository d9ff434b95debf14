package estest

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

var acknowledged = object{{"acknowledged", true}}

// runningNodes returns the nodes that take part in the cluster.
func (c *Cluster) runningNodes() []*Node {
	var list []*Node
	for _, n := range c.Nodes() {
		n.mu.Lock()
		in := n.running && n.listed
		n.mu.Unlock()
		if in {
			list = append(list, n)
		}
	}
	return list
}

func info(r *request) (answer, error) {
	d := r.c.details
	return answer{pretty: true, value: object{
		{"name", r.node.name}, {"cluster_name", r.c.o.Name}, {"cluster_uuid", r.c.uuid}, {"version", d.build}, {"tagline", d.tagline},
	}}, nil
}

// shardCounts returns the primaries and copies that are assigned, and the copies that are not.
func (r *request) shardCounts(indices []*index) (primaries, active, unassigned int) {
	nodes := len(r.c.runningNodes())
	for _, ix := range indices {
		wanted, assigned := ix.replicas(nodes)
		n := len(ix.shards)
		primaries += n
		active += n * (1 + assigned)
		unassigned += n * (wanted - assigned)
	}
	return primaries, active, unassigned
}

func (ix *index) health(nodes int) string {
	if wanted, assigned := ix.replicas(nodes); assigned < wanted {
		return "yellow"
	}
	return "green"
}

func clusterHealth(r *request) (answer, error) {
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	primaries, active, unassigned := r.shardCounts(indices)
	status := "green"
	percent := 100.0
	if unassigned > 0 {
		status = "yellow"
		percent = float64(active) / float64(active+unassigned) * 100
	}
	nodes := len(r.c.runningNodes())
	o := object{
		{"cluster_name", r.c.o.Name}, {"status", status}, {"timed_out", false}, {"number_of_nodes", nodes}, {"number_of_data_nodes", nodes},
	}
	if r.c.details.opensearch {
		o = append(o, member{"discovered_master", true}, member{"discovered_cluster_manager", true})
	}
	return answer{value: append(o, object{
		{"active_primary_shards", primaries},
		{"active_shards", active},
		{"relocating_shards", 0},
		{"initializing_shards", 0},
		{"unassigned_shards", unassigned},
		{"delayed_unassigned_shards", 0},
		{"number_of_pending_tasks", 0},
		{"number_of_in_flight_fetch", 0},
		{"task_max_waiting_in_queue_millis", 0},
		{"active_shards_percent_as_number", percent},
	}...)}, nil
}

func clusterState(r *request) (answer, error) {
	o := object{{"cluster_name", r.c.o.Name}, {"cluster_uuid", r.c.uuid}}
	metric := r.vars["metric"]
	all := metric == "" || metric == "_all"
	if all || strings.Contains(metric, "version") {
		o = append(o, member{"version", r.c.store.version}, member{"state_uuid", stableID(uint64(r.c.store.version) << 32)})
	}
	if all || strings.Contains(metric, "master_node") {
		o = append(o, member{"master_node", r.c.Node(0).id})
	}
	if all || strings.Contains(metric, "nodes") {
		nodes := object{}
		for _, n := range r.c.runningNodes() {
			nodes = append(nodes, member{n.id, object{{"name", n.name}, {"transport_address", n.transportAddress()}, {"attributes", object{}}}})
		}
		o = append(o, member{"nodes", nodes})
	}
	if all || strings.Contains(metric, "metadata") {
		indices := object{}
		for _, ix := range sortedIndices(r.c.store.indices) {
			indices = append(indices, member{ix.name, object{
				{"version", r.c.store.version},
				{"mapping_version", ix.mapping.size() + 1},
				{"settings_version", ix.settingsVersion + 1},
				{"aliases_version", ix.aliasesVersion + 1},
				{"state", "open"},
				{"settings", ix.settingsObject(r.c.details.created)},
				{"aliases", ix.aliasNames()},
			}})
		}
		o = append(o, member{"metadata", object{{"cluster_uuid", r.c.uuid}, {"indices", indices}}})
	}
	return answer{value: o}, nil
}

func (ix *index) aliasNames() []any {
	list := []any{}
	for _, name := range sortedKeys(ix.aliases) {
		list = append(list, name)
	}
	return list
}

// transportAddress is made up: the HTTP port and a hundred more.
func (n *Node) transportAddress() string {
	host, port, _ := strings.Cut(n.Addr(), ":")
	p, _ := strconv.Atoi(port)
	return host + ":" + strconv.Itoa((p+100)%65536)
}

func (n *Node) roleList() []any {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := []any{}
	for _, role := range n.roles {
		list = append(list, role)
	}
	return list
}

func nodesInfo(r *request) (answer, error) {
	nodes := object{}
	wanted := r.vars["node"]
	for _, n := range r.c.runningNodes() {
		if wanted != "" && wanted != "_all" && wanted != n.name && wanted != n.id && !(wanted == "_local" && n == r.node) {
			continue
		}
		addr := n.Addr()
		host, _, _ := strings.Cut(addr, ":")
		o := object{
			{"name", n.name},
			{"transport_address", n.transportAddress()},
			{"host", host},
			{"ip", host},
			{"version", r.c.details.number},
			{"build_type", "docker"},
			{"build_hash", r.c.details.build.get("build_hash")},
			{"roles", n.roleList()},
		}
		n.mu.Lock()
		if len(n.attributes) > 0 {
			attributes := object{}
			for _, name := range slices.Sorted(maps.Keys(n.attributes)) {
				attributes = append(attributes, member{name, n.attributes[name]})
			}
			o = append(o, member{"attributes", attributes})
		}
		if n.hasHTTP {
			o = append(o, member{"http", object{
				{"bound_address", []any{addr}},
				{"publish_address", cmp.Or(n.publish, addr)},
				{"max_content_length_in_bytes", r.c.o.MaxContentLength},
			}})
		}
		n.mu.Unlock()
		nodes = append(nodes, member{n.id, o})
	}
	return answer{value: object{{"_nodes", counted(len(nodes))}, {"cluster_name", r.c.o.Name}, {"nodes", nodes}}}, nil
}

func counted(n int) object { return object{{"total", n}, {"successful", n}, {"failed", 0}} }

func nodesStats(r *request) (answer, error) {
	nodes := object{}
	docs, deleted := 0, 0
	for _, ix := range r.c.store.indices {
		ix.tick(r.now)
		n, gone := ix.docs()
		docs, deleted = docs+n, deleted+gone
	}
	for _, n := range r.c.runningNodes() {
		open, accepted := n.Conns()
		host, _, _ := strings.Cut(n.Addr(), ":")
		nodes = append(nodes, member{n.id, object{
			{"timestamp", r.now.UnixMilli()},
			{"name", n.name},
			{"transport_address", n.transportAddress()},
			{"host", host},
			{"ip", n.transportAddress()},
			{"roles", n.roleList()},
			{"indices", object{{"docs", object{{"count", docs}, {"deleted", deleted}}}}},
			{"http", object{{"current_open", open}, {"total_opened", accepted}}},
		}})
	}
	return answer{value: object{{"_nodes", counted(len(nodes))}, {"cluster_name", r.c.o.Name}, {"nodes", nodes}}}, nil
}

// tasks lists the searches that are in progress, which are those that a fault holds up.
func tasks(r *request) (answer, error) {
	pattern := cmp.Or(r.params["actions"], "*")
	r.c.callsMu.Lock()
	var running []*Call
	for call := range r.c.running {
		running = append(running, call)
	}
	r.c.callsMu.Unlock()
	slices.SortFunc(running, func(a, b *Call) int { return cmp.Compare(a.Seq, b.Seq) })
	nodes := object{}
	for _, n := range r.c.runningNodes() {
		list := object{}
		for _, call := range running {
			action := "indices:data/read/search"
			if call.Node != n.number || !strings.HasSuffix(strings.TrimRight(call.Path, "/"), "/_search") {
				continue
			}
			if !slices.ContainsFunc(strings.Split(pattern, ","), func(p string) bool { return wildcardMatch(p, action) }) {
				continue
			}
			id := fmt.Sprintf("%s:%d", n.id, call.Seq)
			headers := object{}
			if opaque := call.Header.Get("X-Opaque-Id"); opaque != "" {
				headers = append(headers, member{"X-Opaque-Id", opaque})
			}
			list = append(list, member{id, object{
				{"node", n.id},
				{"id", call.Seq},
				{"type", "transport"},
				{"action", action},
				{"start_time_in_millis", call.started / int64(time.Millisecond)},
				{"running_time_in_nanos", r.now.UnixNano() - call.started},
				{"cancellable", true},
				{"headers", headers},
			}})
		}
		if len(list) > 0 {
			host, _, _ := strings.Cut(n.Addr(), ":")
			nodes = append(nodes, member{n.id, object{
				{"name", n.name},
				{"transport_address", n.transportAddress()},
				{"host", host},
				{"ip", n.transportAddress()},
				{"roles", n.roleList()},
				{"tasks", list},
			}})
		}
	}
	return answer{value: object{{"nodes", nodes}}}, nil
}

// stats gives documents and refreshes, and with level=shards each copy with its sequence numbers: what a cache needs to
// know whether an index has changed.
func stats(r *request) (answer, error) {
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	nodes := r.c.runningNodes()
	if len(nodes) == 0 {
		nodes = []*Node{r.node} // which is stopping
	}
	perIndex := object{}
	var allPrimaries, all copyStats
	total, successful := 0, 0
	for _, ix := range indices {
		ix.tick(r.now)
		wanted, assigned := ix.replicas(len(nodes))
		shards := object{}
		var primaries, sum copyStats
		for number, s := range ix.shards {
			one := copyStats{len(s.visible), s.deleted, s.refreshes}
			primaries.add(one)
			copies := []any{}
			for c := range 1 + assigned {
				sum.add(one)
				node := nodes[(number+c)%len(nodes)]
				copies = append(copies, append(object{
					{"routing", object{{"state", "STARTED"}, {"primary", c == 0}, {"node", node.id}, {"relocating_node", nil}}},
				}, append(one.object(r.vars["metric"]), object{
					{"commit", object{{"id", base64.StdEncoding.EncodeToString([]byte(ix.uuid[:16]))}, {"generation", 2}, {"num_docs", 0}}},
					{"seq_no", object{{"max_seq_no", s.maxSeqNo}, {"local_checkpoint", s.maxSeqNo}, {"global_checkpoint", s.maxSeqNo}}},
				}...)...))
			}
			shards = append(shards, member{strconv.Itoa(number), copies})
		}
		total += len(ix.shards) * (1 + wanted)
		successful += len(ix.shards) * (1 + assigned)
		allPrimaries.add(primaries)
		all.add(sum)
		o := object{{"uuid", ix.uuid}, {"primaries", primaries.object(r.vars["metric"])}, {"total", sum.object(r.vars["metric"])}}
		if r.params["level"] == "shards" {
			o = append(o, member{"shards", shards})
		}
		perIndex = append(perIndex, member{ix.name, o})
	}
	o := object{
		{"_shards", object{{"total", total}, {"successful", successful}, {"failed", 0}}},
		{"_all", object{{"primaries", allPrimaries.object(r.vars["metric"])}, {"total", all.object(r.vars["metric"])}}},
	}
	if r.params["level"] != "cluster" {
		o = append(o, member{"indices", perIndex})
	}
	return answer{value: o}, nil
}

type copyStats struct{ docs, deleted, refreshes int }

func (s *copyStats) add(o copyStats) {
	s.docs += o.docs
	s.deleted += o.deleted
	s.refreshes += o.refreshes
}

func (s copyStats) object(metric string) object {
	var o object
	has := func(name string) bool {
		return metric == "" || metric == "_all" || slices.Contains(strings.Split(metric, ","), name)
	}
	if has("docs") {
		o = append(o, member{"docs", object{{"count", s.docs}, {"deleted", s.deleted}}})
	}
	if has("refresh") {
		o = append(o, member{"refresh", object{
			{"total", s.refreshes}, {"total_time_in_millis", 0}, {"external_total", s.refreshes}, {"external_total_time_in_millis", 0}, {"listeners", 0},
		}})
	}
	return o
}

func createIndex(r *request) (answer, error) {
	name, err := resolveDateMath(r.vars["index"], r.now)
	if err != nil {
		return answer{}, err
	}
	if err := checkIndexName(name); err != nil {
		return answer{}, err
	}
	if ix := r.c.store.indices[name]; ix != nil {
		return answer{}, &apiError{
			status: 400, typ: "resource_already_exists_exception",
			reason: fmt.Sprintf("index [%s/%s] already exists", ix.name, ix.uuid),
			meta:   object{{"index_uuid", ix.uuid}, {"index", ix.name}},
		}
	}
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	for _, m := range body {
		if m.key != "settings" && m.key != "mappings" && m.key != "aliases" {
			return answer{}, badRequest("parse_exception", "unknown key [%s] for create index", m.key)
		}
	}
	if _, err := r.c.newIndex(name, body, r.now); err != nil {
		return answer{}, err
	}
	return answer{value: object{{"acknowledged", true}, {"shards_acknowledged", true}, {"index", name}}}, nil
}

func deleteIndex(r *request) (answer, error) {
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	for _, ix := range indices {
		delete(r.c.store.indices, ix.name)
	}
	r.c.store.version++
	return answer{value: acknowledged}, nil
}

// perIndex answers with one member for each index that the path names.
func perIndex(r *request, one func(*index) object) (answer, error) {
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	o := object{}
	for _, ix := range indices {
		o = append(o, member{ix.name, one(ix)})
	}
	return answer{value: o}, nil
}

func getIndex(r *request) (answer, error) {
	return perIndex(r, func(ix *index) object {
		return object{
			{"aliases", ix.aliasesObject("")},
			{"mappings", ix.mapping.object()},
			{"settings", ix.settingsObject(r.c.details.created)},
		}
	})
}

func getMapping(r *request) (answer, error) {
	return perIndex(r, func(ix *index) object { return object{{"mappings", ix.mapping.object()}} })
}

func getSettings(r *request) (answer, error) {
	return perIndex(r, func(ix *index) object { return object{{"settings", ix.settingsObject(r.c.details.created)}} })
}

func (ix *index) settingsObject(created string) object {
	o := object{{"creation_date", strconv.FormatInt(ix.created.UnixMilli(), 10)}}
	for _, key := range sortedKeys(ix.settings) {
		o = setDotted(o, key, ix.settings[key])
	}
	o = append(o, member{"uuid", ix.uuid}, member{"version", object{{"created", created}}}, member{"provided_name", ix.name})
	return object{{"index", o}}
}

func setDotted(o object, key, v string) object {
	name, rest, dotted := strings.Cut(key, ".")
	if !dotted {
		return o.set(name, v)
	}
	return o.set(name, setDotted(o.object(name), rest, v))
}

func putMapping(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	if body == nil {
		return answer{}, badRequest("parse_exception", "request body is required")
	}
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	for _, ix := range indices {
		if err := ix.mapping.merge(body); err != nil {
			return answer{}, err
		}
	}
	r.c.store.version++
	return answer{value: acknowledged}, nil
}

func putSettings(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	if inner := body.object("settings"); inner != nil {
		body = inner
	}
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	for _, ix := range indices {
		ix.tick(r.now)
		if err := ix.applySettings(body, false); err != nil {
			return answer{}, err
		}
		ix.setInterval(r.c.o.RefreshInterval)
		ix.settingsVersion++
	}
	r.c.store.version++
	return answer{value: acknowledged}, nil
}

func refresh(r *request) (answer, error) {
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	for _, ix := range indices {
		ix.refresh(true)
	}
	_, active, unassigned := r.shardCounts(indices)
	return answer{value: object{{"_shards", object{{"total", active + unassigned}, {"successful", active}, {"failed", 0}}}}}, nil
}

func (ix *index) aliasesObject(pattern string) object {
	o := object{}
	for _, name := range sortedKeys(ix.aliases) {
		if pattern == "" || slices.ContainsFunc(strings.Split(pattern, ","), func(p string) bool { return p == "_all" || wildcardMatch(p, name) }) {
			body := ix.aliases[name]
			if body == nil {
				body = object{}
			}
			o = append(o, member{name, body})
		}
	}
	return o
}

func getAlias(r *request) (answer, error) {
	indices, err := r.resolve(r.vars["index"])
	if err != nil {
		return answer{}, err
	}
	name := r.vars["name"]
	o := object{}
	for _, ix := range indices {
		aliases := ix.aliasesObject(name)
		if name == "" || len(aliases) > 0 {
			o = append(o, member{ix.name, object{{"aliases", aliases}}})
		}
	}
	if len(o) == 0 && name != "" && !strings.Contains(name, "*") {
		return answer{}, &apiError{status: 404, bare: true, reason: "alias [" + name + "] missing"}
	}
	return answer{value: o}, nil
}

func putAlias(r *request) (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	return r.allOrNone(func() (answer, error) { return r.aliasAction("add", r.vars["index"], r.vars["name"], body, true) })
}

func deleteAlias(r *request) (answer, error) {
	return r.allOrNone(func() (answer, error) { return r.aliasAction("remove", r.vars["index"], r.vars["name"], nil, true) })
}

// allOrNone takes back what f has done to indices and aliases if it fails, as nodes do with a list of actions.
func (r *request) allOrNone(f func() (answer, error)) (answer, error) {
	store := &r.c.store
	type before struct {
		aliases map[string]object
		version int
	}
	indices, version, kept := maps.Clone(store.indices), store.version, map[*index]before{}
	for _, ix := range indices {
		kept[ix] = before{maps.Clone(ix.aliases), ix.aliasesVersion}
	}
	a, err := f()
	if err != nil {
		store.indices, store.version = indices, version
		for ix, b := range kept {
			ix.aliases, ix.aliasesVersion = b.aliases, b.version
		}
	}
	return a, err
}

func (r *request) aliasAction(action, expr, names string, body object, mustExist bool) (answer, error) {
	indices, err := r.resolve(expr)
	if err != nil {
		return answer{}, err
	}
	for name := range strings.SplitSeq(names, ",") {
		done := false
		for _, ix := range indices {
			switch action {
			case "add":
				if r.c.store.indices[name] != nil {
					e := badRequest("invalid_alias_name_exception", "Invalid alias name [%s]: an index or data stream exists with the same name as the alias", name)
					return answer{}, e
				}
				ix.aliases[name] = body
				ix.aliasesVersion++
				done = true
			case "remove":
				for alias := range ix.aliases {
					if wildcardMatch(name, alias) {
						delete(ix.aliases, alias)
						ix.aliasesVersion++
						done = true
					}
				}
			case "remove_index":
				delete(r.c.store.indices, ix.name)
				done = true
			default:
				return answer{}, badRequest("x_content_parse_exception", "[1:1] [aliases] unknown field [%s]", action)
			}
		}
		if !done && mustExist {
			return answer{}, &apiError{status: 404, typ: "aliases_not_found_exception", reason: "aliases [" + name + "] missing"}
		}
	}
	r.c.store.version++
	return answer{value: acknowledged}, nil
}

func updateAliases(r *request) (answer, error) { return r.allOrNone(r.updateAliases) }

func (r *request) updateAliases() (answer, error) {
	body, err := r.object()
	if err != nil {
		return answer{}, err
	}
	actions, _ := body.get("actions").([]any)
	if len(actions) == 0 {
		return answer{}, illegalArgument("No action specified")
	}
	for _, e := range actions {
		o, _ := e.(object)
		for _, action := range o {
			def, _ := action.value.(object)
			names := append(stringList(def.get("alias")), stringList(def.get("aliases"))...)
			indices := append(stringList(def.get("index")), stringList(def.get("indices"))...)
			var settings object
			for _, m := range def {
				if m.key == "filter" || m.key == "is_write_index" {
					settings = append(settings, m)
				}
			}
			if _, err := r.aliasAction(action.key, strings.Join(indices, ","), strings.Join(names, ","), settings, def.get("must_exist") != false); err != nil {
				return answer{}, err
			}
		}
	}
	return answer{value: acknowledged}, nil
}

func putIndexTemplate(r *request) (answer, error) {
	body, err := r.templateBody()
	if err != nil {
		return answer{}, err
	}
	t := object{{"index_patterns", patternList(body)}}
	for _, m := range body {
		if m.key == "template" {
			inner, _ := m.value.(object)
			m.value = normalTemplate(inner)
		}
		if m.key != "index_patterns" {
			t = append(t, m)
		}
	}
	if !t.has("composed_of") {
		t = append(t, member{"composed_of", []any{}})
	}
	r.c.store.indexTemplates[r.vars["name"]] = t
	r.c.store.version++
	return answer{value: acknowledged}, nil
}

// templateBody reads the body of a template and checks that its patterns are there.
func (r *request) templateBody() (object, error) {
	body, err := r.object()
	if err != nil {
		return nil, err
	}
	if body == nil {
		return nil, badRequest("parse_exception", "request body is required")
	}
	if len(stringList(body.get("index_patterns"))) == 0 {
		return nil, badRequest("action_request_validation_exception", "Validation Failed: 1: index patterns are missing;")
	}
	return body, nil
}

func patternList(body object) []any {
	list := []any{}
	for _, p := range stringList(body.get("index_patterns")) {
		list = append(list, p)
	}
	return list
}

// normalTemplate writes a template's settings as nodes give them back: below "index", as text.
func normalTemplate(t object) object {
	if settings := t.object("settings"); settings != nil {
		flat := map[string]string{}
		flatten(flat, "", settings)
		o := object{}
		for _, key := range sortedKeys(flat) {
			o = setDotted(o, strings.TrimPrefix(key, "index."), flat[key])
		}
		t = append(object(nil), t...).set("settings", object{{"index", o}})
	}
	return t
}

func getIndexTemplate(r *request) (answer, error) {
	list := []any{}
	name := cmp.Or(r.vars["name"], "*")
	for _, key := range sortedKeys(r.c.store.indexTemplates) {
		if wildcardMatch(name, key) {
			list = append(list, object{{"name", key}, {"index_template", r.c.store.indexTemplates[key]}})
		}
	}
	if len(list) == 0 && !strings.Contains(name, "*") {
		return answer{}, &apiError{
			status: 404, typ: "resource_not_found_exception", reason: "index template matching [" + name + "] not found",
		}
	}
	return answer{value: object{{"index_templates", list}}}, nil
}

func deleteIndexTemplate(r *request) (answer, error) {
	return r.deleteTemplate(r.c.store.indexTemplates)
}

func (r *request) deleteTemplate(templates map[string]object) (answer, error) {
	if templates[r.vars["name"]] == nil {
		return answer{}, &apiError{
			status: 404, typ: "index_template_missing_exception", reason: "index_template [" + r.vars["name"] + "] missing",
		}
	}
	delete(templates, r.vars["name"])
	r.c.store.version++
	return answer{value: acknowledged}, nil
}

func putTemplate(r *request) (answer, error) {
	body, err := r.templateBody()
	if err != nil {
		return answer{}, err
	}
	order, _ := strconv.Atoi(cmp.Or(r.params["order"], body.string("order"), "0"))
	t := object{{"order", order}}
	if body.has("version") {
		t = append(t, member{"version", body.get("version")})
	}
	t = append(t, member{"index_patterns", patternList(body)})
	normal := normalTemplate(body)
	for _, key := range []string{"settings", "mappings", "aliases"} {
		part := normal.object(key)
		if part == nil {
			part = object{}
		}
		t = append(t, member{key, part})
	}
	r.c.store.templates[r.vars["name"]] = t
	r.c.store.version++
	return answer{value: acknowledged}, nil
}

func getTemplate(r *request) (answer, error) {
	o := object{}
	name := cmp.Or(r.vars["name"], "*")
	for _, key := range sortedKeys(r.c.store.templates) {
		if wildcardMatch(name, key) {
			o = append(o, member{key, r.c.store.templates[key]})
		}
	}
	a := answer{value: o}
	if len(o) == 0 && !strings.Contains(name, "*") {
		a.status = 404
	}
	return a, nil
}

func deleteTemplate(r *request) (answer, error) { return r.deleteTemplate(r.c.store.templates) }

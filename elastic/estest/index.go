package estest

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

// searchIdle is how long after its last search an index stops to refresh by itself (index.search.idle.after), unless
// its refresh interval was set.
const searchIdle = 30 * time.Second

// store is everything that a cluster keeps.
type store struct {
	indices        map[string]*index
	templates      map[string]object // legacy
	indexTemplates map[string]object
	policies       map[string]*policy // of lifecycles, by name
	scrolls        map[string]*scroll
	scrollsOpened  int
	async          map[string]*asyncSearch
	asyncBegun     int
	version        int64 // of the cluster state
	ids            uint64
}

func newStore() store {
	return store{
		indices: map[string]*index{}, templates: map[string]object{}, indexTemplates: map[string]object{},
		policies: map[string]*policy{},
		scrolls:  map[string]*scroll{}, async: map[string]*asyncSearch{}, version: 1,
	}
}

// newID returns an id for an index or the cluster. Ids do not repeat within a cluster, and come in the same order in
// each.
func (s *store) newID() string {
	s.ids++
	return stableID(s.ids << 20)
}

// newDocID returns an id for a document without one: 20 characters, rising like those of nodes.
func (s *store) newDocID() string {
	s.ids++
	var b [15]byte
	binary.BigEndian.PutUint64(b[7:], s.ids)
	copy(b[:], "estest-")
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// An index is a number of shards with a mapping.
type index struct {
	name, uuid string
	created    time.Time
	settings   map[string]string // without "index.", flat
	mapping    *mapping
	aliases    map[string]object
	shards     []*shard
	interval   time.Duration // negative: no refreshes by time
	explicit   bool          // the interval was set, so that the index never goes idle
	lastSearch time.Time

	settingsVersion, aliasesVersion int // changes since the index was made
}

// A shard keeps documents twice: as they are, for realtime reads, and as searches see them.
type shard struct {
	live      map[string]*document
	visible   []*document
	maxSeqNo  int64
	refreshes int // refresh.external_total
	deleted   int
	dirty     time.Time // of the first change that searches do not see; zero if there is none
}

type document struct {
	id      string
	version int64
	seqNo   int64
	source  []byte
	values  map[string][]value
}

// newIndex makes an index of the settings, mapping and aliases in body, which are those of a create request.
func (c *Cluster) newIndex(name string, body object, now time.Time) (*index, error) {
	ix := &index{
		name: name, uuid: c.store.newID(), created: now, settings: map[string]string{}, mapping: newMapping(),
		aliases: map[string]object{}, lastSearch: now,
	}
	layers := append(c.matchingTemplates(name), body)
	for _, layer := range layers {
		if err := ix.applySettings(layer.object("settings"), true); err != nil {
			return nil, err
		}
		if err := ix.mapping.merge(layer.object("mappings")); err != nil {
			cause := asAPIError(err)
			return nil, &apiError{
				status: 400, typ: "mapper_parsing_exception", reason: "Failed to parse mapping [_doc]: " + cause.reason, cause: cause, root: cause,
			}
		}
		for _, m := range layer.object("aliases") {
			filter, _ := m.value.(object)
			ix.aliases[m.key] = filter
		}
	}
	if ix.settings["number_of_shards"] == "" {
		ix.settings["number_of_shards"] = "1"
	}
	if ix.settings["number_of_replicas"] == "" {
		ix.settings["number_of_replicas"] = "1"
	}
	n, err := strconv.Atoi(ix.settings["number_of_shards"])
	if err != nil || n < 1 || n > 1024 {
		return nil, illegalArgument("Failed to parse value [%s] for setting [index.number_of_shards] must be >= 1", ix.settings["number_of_shards"])
	}
	ix.setInterval(c.o.RefreshInterval)
	for range n {
		ix.shards = append(ix.shards, &shard{live: map[string]*document{}, maxSeqNo: -1, refreshes: 2})
	}
	c.store.indices[name] = ix
	c.store.version++
	return ix, nil
}

// applySettings merges settings, nested or dotted, with or without "index.".
func (ix *index) applySettings(settings object, creating bool) error {
	flat := map[string]string{}
	flatten(flat, "", settings)
	for key, v := range flat {
		key = strings.TrimPrefix(key, "index.")
		if key == "number_of_shards" && !creating {
			return illegalArgument("Can't update non dynamic settings [[index.number_of_shards]] for open indices [[%s/%s]]", ix.name, ix.uuid)
		}
		ix.settings[key] = v
	}
	return nil
}

func flatten(into map[string]string, prefix string, o object) {
	for _, m := range o {
		key := prefix + m.key
		if inner, ok := m.value.(object); ok {
			flatten(into, key+".", inner)
		} else if m.value != nil {
			into[key] = o.string(m.key)
		}
	}
}

// setInterval works out the refresh interval from the setting, or from otherwise.
func (ix *index) setInterval(otherwise time.Duration) {
	ix.interval, ix.explicit = otherwise, false
	if text, ok := ix.settings["refresh_interval"]; ok {
		ix.explicit = true
		ix.interval = -1
		if d, ok := parseTimeValue(text); ok {
			ix.interval = d
		}
	}
}

// parseTimeValue reads a duration as settings and scrolls have it: "30s", "1m", "500ms"; "-1" is none.
func parseTimeValue(s string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		return time.Duration(n) * 24 * time.Hour, err == nil && n >= 0
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d >= 0
}

// refresh lets searches see all changes. Without changes it does nothing, unless it was asked for: then it counts, as in
// nodes.
func (ix *index) refresh(asked bool) {
	for _, s := range ix.shards {
		if !s.dirty.IsZero() || asked {
			s.refresh()
		}
	}
}

func (s *shard) refresh() {
	s.refreshes++
	if s.dirty.IsZero() {
		return
	}
	s.dirty = time.Time{}
	visible := make([]*document, 0, len(s.live))
	for _, d := range s.live {
		visible = append(visible, d)
	}
	slices.SortFunc(visible, func(a, b *document) int { return cmp.Compare(a.seqNo, b.seqNo) })
	s.visible = visible
}

// tick does the refreshes that were due by time. An index that nobody searches does not refresh.
func (ix *index) tick(now time.Time) {
	if ix.interval < 0 {
		return
	}
	for _, s := range ix.shards {
		due := s.dirty.Add(ix.interval)
		if !s.dirty.IsZero() && !due.After(now) && (ix.explicit || due.Before(ix.lastSearch.Add(searchIdle))) {
			s.refresh()
		}
	}
}

// searched notes a search. One that wakes an idle index sees everything.
func (ix *index) searched(now time.Time) {
	ix.tick(now)
	if !ix.explicit && ix.interval >= 0 && now.Sub(ix.lastSearch) >= searchIdle {
		ix.refresh(false)
	}
	ix.lastSearch = now
}

// shardOf returns the shard for a document, the one in which a real node would put it.
func (ix *index) shardOf(id, routing string) (*shard, int) {
	if routing == "" {
		routing = id
	}
	n := len(ix.shards)
	routingShards := n << max(1, 10-bits.Len(uint(n-1)))
	hash := int(int32(murmur3(routing)))
	at := ((hash % routingShards) + routingShards) % routingShards / (routingShards / n)
	return ix.shards[at], at
}

// murmur3 is the 32-bit x86 variant with seed 0 over the UTF-16 code units of s, low byte first.
func murmur3(s string) uint32 {
	units := utf16.Encode([]rune(s))
	var h uint32
	mix := func(k uint32) uint32 { return bits.RotateLeft32(k*0xcc9e2d51, 15) * 0x1b873593 }
	i := 0
	for ; i+1 < len(units); i += 2 {
		h ^= mix(uint32(units[i]) | uint32(units[i+1])<<16)
		h = bits.RotateLeft32(h, 13)*5 + 0xe6546b64
	}
	if i < len(units) {
		h ^= mix(uint32(units[i]))
	}
	h ^= uint32(2 * len(units))
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

// replicas returns the number of copies wanted besides the primaries, and of those that fit on the running nodes.
func (ix *index) replicas(nodes int) (wanted, assigned int) {
	wanted, _ = strconv.Atoi(ix.settings["number_of_replicas"])
	return wanted, min(wanted, max(0, nodes-1))
}

func (ix *index) docs() (count, deleted int) {
	for _, s := range ix.shards {
		count += len(s.visible)
		deleted += s.deleted
	}
	return count, deleted
}

// resolve returns the indices that an expression names, in the order of their names: names, aliases, patterns,
// exclusions, date math. r may loosen it with ignore_unavailable and tighten it with allow_no_indices=false.
func (r *request) resolve(expr string) ([]*index, error) {
	found := map[string]*index{}
	if expr == "" {
		expr = "_all"
	}
	wildcards := false
	for name := range strings.SplitSeq(expr, ",") {
		name, err := resolveDateMath(name, r.now)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(name, "_") && name != "_all" {
			e := badRequest("invalid_index_name_exception", "Invalid index name [%s], must not start with '_'.", name)
			e.meta = object{{"index_uuid", "_na_"}, {"index", name}}
			return nil, e
		}
		if excluded, ok := strings.CutPrefix(name, "-"); ok && wildcards {
			for _, ix := range r.c.matching(excluded) {
				delete(found, ix.name)
			}
			continue
		}
		if name == "_all" {
			name = "*"
		}
		matches := r.c.matching(name)
		if strings.Contains(name, "*") {
			wildcards = true
		} else if len(matches) == 0 && !r.flag("ignore_unavailable") {
			return nil, indexNotFound(name, false)
		}
		for _, ix := range matches {
			found[ix.name] = ix
		}
	}
	if len(found) == 0 && r.params["allow_no_indices"] == "false" {
		return nil, indexNotFound(expr, false)
	}
	return sortedIndices(found), nil
}

func sortedIndices(m map[string]*index) []*index {
	list := make([]*index, 0, len(m))
	for _, ix := range m {
		list = append(list, ix)
	}
	slices.SortFunc(list, func(a, b *index) int { return cmp.Compare(a.name, b.name) })
	return list
}

// matching returns the indices whose name or alias matches a pattern. A leading dot hides an index from patterns that
// do not have one.
func (c *Cluster) matching(pattern string) []*index {
	var list []*index
	for _, ix := range sortedIndices(c.store.indices) {
		hidden := strings.HasPrefix(ix.name, ".") && strings.HasPrefix(pattern, "*")
		ok := wildcardMatch(pattern, ix.name) && !hidden
		for alias := range ix.aliases {
			ok = ok || wildcardMatch(pattern, alias)
		}
		if ok {
			list = append(list, ix)
		}
	}
	return list
}

// one returns the index for calls that take exactly one; create makes it if it does not exist.
func (r *request) one(name string, create bool) (*index, error) {
	name, err := resolveDateMath(name, r.now)
	if err != nil {
		return nil, err
	}
	if ix := r.c.store.indices[name]; ix != nil {
		return ix, nil
	}
	for _, ix := range sortedIndices(r.c.store.indices) {
		if _, ok := ix.aliases[name]; ok {
			return ix, nil
		}
	}
	if !create {
		return nil, indexNotFound(name, true)
	}
	if err := checkIndexName(name); err != nil {
		return nil, err
	}
	return r.c.newIndex(name, nil, r.now)
}

func checkIndexName(name string) error {
	reason := ""
	switch {
	case name == "" || strings.ContainsAny(name, "\\/*?\"<>| ,#:"):
		reason = "must not contain the following characters [ , \", *, \\, <, |, ,, >, /, ?]"
	case strings.ContainsAny(name[:1], "_-+"):
		reason = "must not start with '_', '-', or '+'"
	case strings.ToLower(name) != name:
		reason = "must be lowercase"
	case len(name) > 255:
		reason = "index name is too long, (" + strconv.Itoa(len(name)) + " > 255)"
	default:
		return nil
	}
	e := badRequest("invalid_index_name_exception", "Invalid index name [%s], %s", name, reason)
	e.meta = object{{"index_uuid", "_na_"}, {"index", name}}
	return e
}

// matchingTemplates returns what the templates say for a new index, weakest first. An index template replaces all legacy
// ones.
func (c *Cluster) matchingTemplates(name string) []object {
	var best object
	bestPriority := -1
	for _, t := range c.store.indexTemplates {
		priority, _ := strconv.Atoi(t.string("priority"))
		if matchesTemplate(t, name) && priority > bestPriority {
			best, bestPriority = t, priority
		}
	}
	if best != nil {
		return []object{best.object("template")}
	}
	var list []object
	for _, t := range c.store.templates {
		if matchesTemplate(t, name) {
			list = append(list, t)
		}
	}
	order := func(o object) int {
		n, _ := strconv.Atoi(o.string("order"))
		return n
	}
	slices.SortStableFunc(list, func(a, b object) int { return cmp.Compare(order(a), order(b)) })
	return list
}

func matchesTemplate(t object, name string) bool {
	return slices.ContainsFunc(stringList(t.get("index_patterns")), func(p string) bool { return wildcardMatch(p, name) })
}

// stringList reads a string or a list of strings.
func stringList(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var list []string
		for _, e := range v {
			if s, ok := e.(string); ok {
				list = append(list, s)
			}
		}
		return list
	}
	return nil
}

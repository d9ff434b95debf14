package query

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"sync"
	"time"

	"weir/internal/wire"
)

// keyFormat is the first part of every key. It changes whenever the meaning of the others does, so that a store that
// outlives the process is not read with other eyes.
const keyFormat = "weir/1"

// An IdentityMode says who may be given an answer that was made for somebody else.
type IdentityMode uint8

const (
	// PerCredential shares an answer only between requests with the same credentials, of whatever kind: every header field
	// counts as one that is not known to change no answer.
	PerCredential IdentityMode = iota
	// Shared gives an answer to everybody. It is right only where no index has document or field level security and
	// everybody who reaches the gateway may read all that is searched.
	Shared
	// PerPrincipal is PerCredential, but leaves it to the caller of Key to say for whom Authorization stands: see
	// Verdict.Nameable.
	PerPrincipal
)

// A PreferenceMode says what a custom ?preference does to the key. Those that begin with "_" are always kept.
type PreferenceMode uint8

const (
	// PreferenceAuto drops it when no hits are asked for, not as suggestions or inside of aggregations either. Copies of a shard
	// may order hits of equal score differently, but count alike. Kibana sends the time at which the page was loaded, so keeping it means that no two tabs share.
	PreferenceAuto PreferenceMode = iota
	// PreferenceKeep keeps it.
	PreferenceKeep
	// PreferenceDrop drops it.
	PreferenceDrop
)

// Options shape the keys of a Keyer. The zero value is good but for Secret.
type Options struct {
	// ClusterID is the uuid of the cluster that answers.
	ClusterID string
	// Identity says who shares answers.
	Identity IdentityMode
	// Secret keys the HMAC over credentials, so that a key tells nothing about them. At least 16 bytes; needed unless
	// Identity is Shared and ExtraHeaders is empty.
	Secret []byte
	// ByAddress makes the caller's address part of the identity, for clusters that map roles by host.
	ByAddress bool
	// Preference says what a custom ?preference does.
	Preference PreferenceMode
	// DeterministicScripts says that the scripts in searches give the same for the same documents.
	DeterministicScripts bool
	// ExtraHeaders adds request headers to the key: names, and beginnings of names with "*" behind. "*" alone adds all but
	// those known to change no answer, which makes a difference under Shared only.
	ExtraHeaders []string
	// HarmlessHeaders are fields, as in ExtraHeaders, that change no answer although nobody but the operator knows. They
	// may cover no field by which clusters and the proxies in front of them know callers.
	HarmlessHeaders []string
	// ExtraArgs names URL parameters to keep in the key although they change no complete answer.
	ExtraArgs []string
	// RoundedNow says that the clocks of the nodes can be relied upon: searches that count from a rounded now only are not
	// NowBound, but only have a Step.
	RoundedNow bool
	// Others names APIs beside search and count whose requests get keys, out of those that Others returns.
	Others []string
	// MaxBody is the largest body that gets a key, in bytes; 0 means 1 MiB.
	MaxBody int
	// MemoBytes bounds the memory in which keys of recent requests are remembered; 0 means 8 MiB, less than 0 none.
	MemoBytes int
}

// A Request is what of a request decides on its key. Key keeps none of the slices.
type Request struct {
	API         string // name in the REST specification, such as "search"
	Method      []byte
	Index       []byte // index expression as it stands in the path, escapes and all; empty when the path names none
	Type        []byte // mapping type of a typed path, likewise
	RawQuery    []byte // without "?"
	Header      *wire.Header
	Names       Names // tells fields that say who asks although others of their name change no answer; may be nil
	Body        []byte
	Certificate []byte // what identifies the caller's TLS certificate; empty without one
	Address     []byte // the caller's address, heeded under Options.ByAddress
}

// A Key is the identity of an answer.
type Key [sha256.Size]byte

// A Verdict says what may be done for a request.
type Verdict struct {
	// Bypass says why the answer is neither taken from the cache nor stored nor shared. Empty means it has a Key.
	Bypass Reason
	// TTLOnly, unless empty, says why nothing but its age bounds an answer: no counter of the indices can prove it fresh.
	TTLOnly Reason
	// Elsewhere tells that documents of an index have a part in the answer that the path may not name. What is written to
	// any index may change the answer.
	Elsewhere bool
	// NowBound tells that the answer moves with the clock.
	NowBound bool
	// Step, unless 0, tells that the answer may change with the clock at each multiple of it, in UTC, and not in between.
	Step time.Duration
	// Refresh tells that the caller wants no stored answer, but lets the new one be stored.
	Refresh bool
	// OnlyIfCached tells that the caller wants a stored answer or 504.
	OnlyIfCached bool
	// TerminateAfter tells that the request lets shards end early; see Complete.
	TerminateAfter bool
	// Precomputable tells that the request asks for aggregations only, which OpenSearch 3 may take from the structure of
	// an index; see Complete.
	Precomputable bool
	// Hidden are members that the answer must have to be judged, and that the request's filter_path hides: the request is to be
	// sent as Widen says, and the answer given as Narrow says.
	Hidden Members
	// Caller tells callers apart by what says who they are, under Options.Secret. It is zero if nothing does, or if it does not
	// matter because everybody shares answers.
	Caller [16]byte
	// Nameable tells, under PerPrincipal, that Authorization is not in the key. Whoever uses that must add Caller, or the
	// Principal as whom the cluster knows that caller.
	Nameable bool
	// MaxAge bounds the age of a stored answer. It is below 0 when the request sets no bound.
	MaxAge time.Duration
	// Dropped identifies what is not in the key because it changes no complete answer. It may change a failure: give
	// one only to requests with the same Dropped. It is zero if there is nothing.
	Dropped [sha256.Size]byte
}

// Cacheable tells whether the request has a key.
func (v *Verdict) Cacheable() bool { return v.Bypass == "" }

// A Keyer works out keys. It is safe for concurrent use.
type Keyer struct {
	options      Options
	begin        [sha256.Size]byte // the first part of every key
	extraHeaders []headerPattern
	everyHeader  bool
	harmless     []headerPattern
	memo         *memo
	states       sync.Pool
}

// NewKeyer checks the options and returns a Keyer.
func NewKeyer(o Options) (*Keyer, error) {
	if o.Identity > PerPrincipal {
		return nil, fmt.Errorf("identity mode %d: unknown", o.Identity)
	}
	if o.Preference > PreferenceDrop {
		return nil, fmt.Errorf("preference mode %d: unknown", o.Preference)
	}
	for _, name := range o.Others {
		if !slices.Contains(others[:], name) {
			return nil, fmt.Errorf("API %q has no keys, only %q", name, others)
		}
	}
	if len(o.Secret) < 16 && (o.Identity != Shared || len(o.ExtraHeaders) > 0 || o.ByAddress) {
		return nil, fmt.Errorf("secret of %d bytes: at least 16 are needed", len(o.Secret))
	}
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.MemoBytes == 0 {
		o.MemoBytes = 8 << 20
	}
	k := &Keyer{options: o, begin: o.begin()}
	k.everyHeader = slices.Contains(o.ExtraHeaders, "*")
	var err error
	if k.extraHeaders, err = parseHeaderPatterns(slices.DeleteFunc(slices.Clone(o.ExtraHeaders), func(n string) bool { return n == "*" })); err != nil {
		return nil, err
	}
	if k.harmless, err = parseHeaderPatterns(o.HarmlessHeaders); err != nil {
		return nil, err
	}
	for _, p := range k.harmless {
		if i := slices.IndexFunc(credentials, func(name string) bool { return p.matches([]byte(name)) }); i >= 0 {
			return nil, fmt.Errorf("%s says who asks: without it in the key callers get the answers of others", credentials[i])
		}
	}
	if o.MemoBytes > 0 {
		k.memo = newMemo(int64(o.MemoBytes))
	}
	k.states.New = func() any { return &state{mac: hmac.New(sha256.New, o.Secret)} }
	return k, nil
}

// begin returns the first part of every key under o. What makes requests alike is in it: an answer that was stored while two
// callers were taken for one by mistake must not be given when that is corrected.
func (o *Options) begin() [sha256.Size]byte {
	b := appendString(nil, keyFormat)
	b = appendString(b, o.ClusterID)
	b = append(b, byte(o.Identity), byte(o.Preference))
	b = appendFlag(appendFlag(b, o.ByAddress), o.RoundedNow)
	for _, list := range [...][]string{o.ExtraHeaders, o.HarmlessHeaders, o.ExtraArgs} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, name := range list {
			b = appendString(b, name)
		}
	}
	return sha256.Sum256(b)
}

// MemoBytes returns how many bytes the remembered requests take.
func (k *Keyer) MemoBytes() int64 {
	if k.memo == nil {
		return 0
	}
	return k.memo.bytes.Load()
}

// state is the memory of one call.
type state struct {
	canon    Canon
	mac      hash.Hash
	name     [64]byte
	raw      []byte // the request as it is remembered
	parts    []byte // the parts of the key
	dropped  []byte // the parts left out
	identity []byte // what the HMAC is taken over
	caller   []byte // what it was taken over last, and callerMAC what came of it
	accept   []byte // what stands in the key for Accept
	body     []byte // canonical
	args     []arg
	arena    []byte // decoded parameters

	callerMAC [sha256.Size]byte
	othersMAC [sha256.Size]byte // of what else than the proof says who asks
	named     bool              // something says who asks
	proof     wire.Field        // Authorization, where the cluster can say for whom it stands; its name is nil without one
}

// maxState is the largest memory that goes back to the pool.
const maxState = 1 << 20

func (k *Keyer) release(s *state) {
	if cap(s.raw)+cap(s.parts)+cap(s.body)+cap(s.arena)+cap(s.caller)+cap(s.canon.scratch) <= maxState {
		k.states.Put(s)
	}
}

// Key returns the key of a request, and what may be done for it. The key is zero if the verdict is to bypass. Two
// requests have the same key only if a node would give them the same complete answer, at the same time and to the same
// caller.
func (k *Keyer) Key(r *Request) (Key, Verdict) {
	if len(r.Body) > k.options.MaxBody {
		return Key{}, Verdict{Bypass: ReasonBodySize, MaxAge: -1}
	}
	s := k.states.Get().(*state)
	base, v := k.remember(s, r)
	k.release(s)
	if v.Bypass != "" {
		return Key{}, v
	}
	return base, v
}

// remember returns the key, from the memo if the same bytes came before.
func (k *Keyer) remember(s *state, r *Request) (Key, Verdict) {
	if k.memo == nil {
		return k.work(s, r)
	}
	s.raw = k.appendRaw(s.raw[:0], s, r)
	sum := k.memo.hash(s.raw)
	if e := k.memo.get(sum, s.raw); e != nil {
		return e.key, e.verdict
	}
	key, v := k.work(s, r)
	k.memo.put(sum, s.raw, key, v)
	return key, v
}

// appendRaw appends everything of the request that work looks at.
func (k *Keyer) appendRaw(dst []byte, s *state, r *Request) []byte {
	dst = appendString(dst, r.API)
	dst = appendPart(dst, r.Method)
	dst = appendPart(dst, r.Index)
	dst = appendPart(dst, r.Type)
	dst = appendPart(dst, r.RawQuery)
	dst = appendPart(dst, r.Certificate)
	dst = appendPart(dst, k.identityFields(r))
	if k.options.ByAddress {
		dst = appendPart(dst, r.Address)
	}
	dst = appendPart(dst, r.Body)
	for _, f := range r.Header.Fields() {
		if h, extra := k.hear(r, lower(&s.name, f.Name)); h > hearInert || extra {
			dst = append(dst, byte(h))
			dst = appendPart(dst, f.Name)
			dst = appendPart(dst, f.Value)
		}
	}
	return dst
}

// appendPart appends b with its length in front, so that no two lists of parts look the same.
func appendPart(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// work works out the key without the generation.
func (k *Keyer) work(s *state, r *Request) (Key, Verdict) {
	v := Verdict{MaxAge: -1}
	s.parts, s.dropped = s.parts[:0], s.dropped[:0]
	if v.Bypass = k.assemble(s, r, &v); v.Bypass != "" {
		return Key{}, v
	}
	switch n := len(s.dropped); {
	case n >= len(v.Dropped):
		v.Dropped = sha256.Sum256(s.dropped)
	case n > 0:
		v.Dropped[0] = byte(n)
		copy(v.Dropped[1:], s.dropped)
	}
	if v.NowBound {
		v.lives(ReasonNow)
	}
	return sha256.Sum256(s.parts), v
}

// lives notes why an answer lives for its time only. The first reason stays.
func (v *Verdict) lives(why Reason) {
	if v.TTLOnly == "" {
		v.TTLOnly = why
	}
}

// assemble puts the parts of the key together, or says why there is none.
func (k *Keyer) assemble(s *state, r *Request, v *Verdict) Reason {
	count, other := r.API == "count", r.API != "count" && r.API != "search"
	switch {
	case !k.has(r.API):
		return ReasonAPI
	case string(r.Method) != "GET" && string(r.Method) != "POST":
		return ReasonMethod
	}
	s.parts = append(s.parts, k.begin[:]...)
	// What was stored while a field told nobody from others is not given when it does.
	s.parts = appendPart(s.parts, k.identityFields(r))
	s.parts = appendString(s.parts, r.API)
	s.addPath(r.Index, v)
	s.addPath(r.Type, v)

	contentType, why := k.addHeaders(s, r, v)
	if why != "" {
		return why
	}
	if s.args, s.arena, why = parseArgs(s.args, s.arena, r.RawQuery); why != "" {
		return why
	}
	if k.options.Identity != Shared && s.identifyArgs() {
		s.identifyProof() // one may be a token, which is not sent where the cluster is asked
	}
	s.addIdentity(v)
	body, contentType, why := s.source(r.Body, contentType)
	if why != "" {
		return why
	}
	var facts Facts
	var err error
	if s.body, facts, err = s.canon.Body(s.body[:0], body); err != nil {
		if errors.Is(err, DuplicateKey) {
			return ReasonDuplicateKey
		}
		return ReasonBody
	}
	if other {
		for i := range s.args {
			s.args[i].row = otherRule(s.args[i].row)
		}
		why = judgeOther(r, s.body, v)
	} else {
		why = k.judge(&facts, s.body, v)
	}
	if why != "" {
		return why
	}
	if why = k.addArgs(s, count, &facts, v); why != "" {
		return why
	}
	if v.Hidden != 0 && (s.pretty() || signed(r, s)) {
		return ReasonFilterPath
	}
	s.parts = appendPart(s.parts, contentType)
	s.parts = appendPart(s.parts, s.body)
	if count || other {
		// _count answers a body with timeout or stats with 400.
		s.parts = s.canon.Dropped(s.parts)
	} else {
		s.dropped = s.canon.Dropped(s.dropped)
	}
	return ""
}

// identityFields returns what tells the names of fields by which callers say who they are from others, where that matters.
func (k *Keyer) identityFields(r *Request) []byte {
	if r.Names == nil || k.options.Identity == Shared {
		return nil
	}
	return r.Names.IdentityFields()
}

// addPath adds a part of the path, decoded once. Order and spelling stay: a,-b is not -b,a.
func (s *state) addPath(raw []byte, v *Verdict) {
	s.arena = slices.Grow(s.arena[:0], len(raw))
	text, _, ok := unescape(s.arena, raw, false)
	s.parts = appendFlag(s.parts, ok)
	s.parts = appendPart(s.parts, text)
	if hasDateMathName(text) || !ok {
		v.NowBound = true
	}
	if bytes.IndexByte(text, ':') >= 0 {
		v.lives(ReasonRemote)
	}
}

func appendFlag(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// addHeaders adds what in the header, other than who asks, changes the answer, and gathers who asks. It returns the reduced Content-Type,
// which is empty if there is none.
func (k *Keyer) addHeaders(s *state, r *Request, v *Verdict) (contentType []byte, why Reason) {
	s.accept = s.accept[:0]
	k.beginIdentity(s, r)
	accepts := 0
	choice := true // of the node, as far as Accept goes
	pragma := false
	control := false
	nameable := k.options.Identity == PerPrincipal && isNameable(r.Header)
	for _, f := range r.Header.Fields() {
		name := lower(&s.name, f.Name)
		h, extra := k.hear(r, name)
		switch {
		case nameable && h == hearIdentity && !extra && string(name) == "authorization":
			s.proof, s.named = f, true
		case h == hearIdentity, h == hearAddress, extra:
			s.identify(name, f)
			s.named = s.named || h == hearIdentity
		}
		switch h {
		case hearOrigin:
			return nil, ReasonOrigin
		case hearContentEncoding:
			return nil, ReasonRequestCoding
		case hearCacheControl:
			control = true
			if v.cacheControl(f.Value) {
				return nil, ReasonNoStore
			}
		case hearPragma:
			pragma = pragma || wire.HasToken(f.Value, "no-cache")
		case hearContentType:
			m := mediaOf(f.Value)
			if contentType != nil || !m.json || !isUTF8JSON(f.Value) {
				return nil, ReasonRequestType
			}
			contentType = m.text
		case hearAccept:
			m := mediaOf(f.Value)
			if !m.json && !m.any && bytes.IndexByte(f.Value, ',') < 0 {
				return nil, ReasonAccept
			}
			accepts++
			choice = choice && m.any && len(m.text) == 0
			s.accept = appendPart(s.accept, m.text)
		case hearShape:
			s.parts = append(s.parts, 1)
			s.parts = appendPart(s.parts, name)
			s.parts = appendPart(s.parts, f.Value)
		}
	}
	s.parts = append(s.parts, 0)
	// RFC 9111 section 5.4: Pragma counts only without Cache-Control.
	v.Refresh = v.Refresh || pragma && !control
	if choice {
		// Elasticsearch then answers in the type of the request.
		accepts, s.accept = 1, s.accept[:0]
		if len(contentType) == 0 {
			s.accept = appendString(s.accept, "json")
		} else {
			s.accept = appendPart(s.accept, contentType)
		}
	}
	s.parts = binary.AppendUvarint(s.parts, uint64(accepts))
	s.parts = append(s.parts, s.accept...)
	return contentType, ""
}

// beginIdentity begins what the HMAC is taken over with what no header holds.
func (k *Keyer) beginIdentity(s *state, r *Request) {
	s.identity, s.named, s.proof = s.identity[:0], false, wire.Field{}
	if k.options.Identity != Shared {
		s.identity = append(s.identity, 'c')
		s.identity = appendPart(s.identity, r.Certificate)
		s.named = len(r.Certificate) > 0
	}
	if k.options.ByAddress {
		s.identity = append(s.identity, 'a')
		s.identity = appendPart(s.identity, r.Address)
	}
}

// identify adds a header field that says who asks. name is in lower case, and cut if it is longer than any that is known.
func (s *state) identify(name []byte, f wire.Field) {
	if len(f.Name) > len(name) {
		name = f.Name
	}
	s.identity = append(s.identity, 'h')
	s.identity = appendPart(s.identity, name)
	s.identity = appendPart(s.identity, f.Value)
}

// identifyArgs adds the URL parameters that may say who asks, such as the one from which a plug-in takes a token. It tells whether
// there is one.
func (s *state) identifyArgs() (found bool) {
	for i := range s.args {
		if a := &s.args[i]; !Known(a.name) {
			s.identity = append(s.identity, 'u')
			s.identity = appendPart(s.identity, a.name)
			s.identity = appendPart(s.identity, a.value)
			s.named, found = true, true
		}
	}
	return found
}

// identifyProof adds Authorization as the header field that it is.
func (s *state) identifyProof() {
	if s.proof.Name != nil {
		s.identify(authorization, s.proof)
		s.proof = wire.Field{}
	}
}

var authorization = []byte("authorization")

// addIdentity adds an HMAC over who asks, and over the headers that the options add, which may hold credentials too. Of
// the last caller it is known already. For whom a proof stands is left open.
func (s *state) addIdentity(v *Verdict) {
	v.Nameable = s.proof.Name != nil
	if v.Nameable {
		s.mac.Reset()
		s.mac.Write(s.identity)
		s.parts = appendPart(s.parts, s.mac.Sum(s.othersMAC[:0]))
		s.identifyProof()
	}
	if len(s.identity) == 0 {
		s.parts = appendPart(s.parts, nil)
		return
	}
	if !bytes.Equal(s.identity, s.caller) {
		s.mac.Reset()
		s.mac.Write(s.identity)
		s.mac.Sum(s.callerMAC[:0])
		s.caller = append(s.caller[:0], s.identity...)
	}
	if v.Nameable {
		s.dropped = appendPart(s.dropped, s.callerMAC[:]) // a refusal is for who was refused
	} else {
		s.parts = appendPart(s.parts, s.callerMAC[:])
	}
	if s.named {
		copy(v.Caller[:], s.callerMAC[:])
	}
}

// source returns the body, which may stand in the URL, and its type.
func (s *state) source(body, contentType []byte) (source, sourceType []byte, why Reason) {
	var text, kind *arg
	for i := range s.args {
		switch s.args[i].row.rule {
		case ruleSource:
			text = &s.args[i]
		case ruleSourceType:
			kind = &s.args[i]
		}
	}
	switch {
	case text == nil && kind == nil && len(body) == 0 && len(contentType) == 0:
		return nil, textJSON, "" // the same search as {}
	case text == nil && kind == nil:
		return body, contentType, ""
	case text == nil || kind == nil || len(body) > 0 || len(text.value) == 0 || text.raw:
		return nil, nil, ReasonSource
	}
	if !isUTF8JSON(kind.value) {
		return nil, nil, ReasonRequestType
	}
	return text.value, mediaOf(kind.value).text, ""
}

// judge says what the body's contents mean for caching.
func (k *Keyer) judge(f *Facts, body []byte, v *Verdict) Reason {
	switch {
	case f.Slice:
		return ReasonSlice
	case f.PIT:
		return ReasonPIT
	case f.Profile:
		return ReasonProfile
	case f.ScriptedMetric:
		return ReasonScriptedMetric
	case f.Sampler:
		return ReasonSampler
	case f.Random:
		return ReasonRandom
	case f.Wrapped:
		return ReasonWrapper
	case f.Script && !k.options.DeterministicScripts:
		return ReasonScript
	case f.Script:
		v.lives(ReasonScript)
	case f.Explain:
		v.lives(ReasonExplain)
	case f.TerminateAfter:
		v.lives(ReasonTerminateAfter)
	case f.Foreign:
		v.lives(ReasonForeign)
	case f.External:
		v.lives(ReasonExternal)
	case f.Pipeline:
		v.lives(ReasonSearchPipeline)
	}
	switch {
	case f.Minutely:
		v.Step = stepMinute
	case f.Hourly:
		v.Step = stepHour
	}
	rounded := v.Step > 0 && k.options.RoundedNow && !oddZone(body)
	v.NowBound, v.Elsewhere = v.NowBound || f.Now || v.Step > 0 && !rounded, f.Foreign
	v.TerminateAfter, v.Precomputable = f.TerminateAfter, f.Aggs && !f.TerminateAfter
	return ""
}

// addArgs adds the URL parameters, sorted by name. What they say overrides the facts of the body.
func (k *Keyer) addArgs(s *state, count bool, f *Facts, v *Verdict) Reason {
	size0, uneven := f.Size0, f.Uneven || f.TerminateAfter || f.External || f.Pipeline
	var text []byte
	analyzed := false
	for i := range s.args {
		switch s.args[i].row.rule {
		case ruleQueryString:
			text = s.args[i].value
		case ruleAnalyzer:
			analyzed = true
		case ruleSize:
			size0 = string(s.args[i].value) == "0"
		case ruleUneven, ruleTerminate, rulePipeline:
			uneven = true
		}
	}
	v.NowBound = v.NowBound || analyzed && hasAnyNow(text)
	v.Precomputable = v.Precomputable && size0 && !count
	even := (count || size0) && !uneven
	for i := range s.args {
		a := &s.args[i]
		if count && a.row.searchOnly {
			a.row = param{}
		}
		drop, why := k.judgeArg(a, even, v)
		switch {
		case why != "":
			return why
		case a.row.rule == ruleSwitch, a.row.rule == ruleSource, a.row.rule == ruleSourceType:
			// The node does not see the first, and the others stand in the key as the body.
			a.dropped = true
		case drop && !k.keepsArg(a.name):
			a.dropped = true
			s.dropped = appendPart(s.dropped, a.name)
			s.dropped = appendPart(s.dropped, a.keyValue())
		default:
			s.parts = append(s.parts, 1)
			s.parts = appendPart(s.parts, a.name)
			s.parts = appendFlag(s.parts, a.raw)
			s.parts = appendPart(s.parts, a.keyValue())
		}
	}
	s.parts = append(s.parts, 0)
	return ""
}

// pretty tells whether the answer has white space, with which nobody can cut it as a node does.
func (s *state) pretty() bool {
	return slices.ContainsFunc(s.args, func(a arg) bool { return string(a.name) == "pretty" && string(a.value) != "false" })
}

// signed tells whether the caller has signed the URL, which must not change then.
func signed(r *Request, s *state) bool {
	return bytes.HasPrefix(r.Header.Get("authorization"), []byte("AWS4-")) ||
		slices.ContainsFunc(s.args, func(a arg) bool { return bytes.EqualFold(a.name, []byte("x-amz-signature")) })
}

// judgeArg says whether a URL parameter stays out of the key, or why there is no key. even tells that copies of a shard give
// the same.
func (k *Keyer) judgeArg(a *arg, even bool, v *Verdict) (drop bool, why Reason) {
	switch a.row.rule {
	case ruleDrop:
		return a.wellFormed(), ""
	case ruleSwitch:
		if string(a.value) != "false" {
			return false, ReasonNoCache
		}
	case ruleCache:
		if string(a.value) == "false" {
			return false, ReasonRequestCache
		}
		return a.wellFormed(), ""
	case ruleScroll:
		return false, ReasonScroll
	case ruleProfile:
		if string(a.value) != "false" {
			return false, ReasonProfile
		}
	case ruleSearchType:
		if string(a.value) == "dfs_query_then_fetch" {
			return false, ReasonSearchType
		}
	case ruleFormat:
		if string(a.value) != "json" {
			return false, ReasonFormat
		}
	case ruleFilterPath:
		ok := false
		if v.Hidden, ok = hiddenBy(a.value); !ok || a.raw {
			return false, ReasonFilterPath
		}
	case ruleHides:
		return false, ReasonFilterPath
	case rulePreference:
		return k.judgePreference(a, even, v), ""
	case ruleQueryString:
		v.NowBound = v.NowBound || a.raw || hasNowToken(a.value, false)
	case ruleTerminate:
		if string(a.value) != "0" {
			v.TerminateAfter, v.Precomputable = true, false
			v.lives(ReasonTerminateAfter)
		}
	case ruleExplain:
		if string(a.value) != "false" {
			v.lives(ReasonExplain)
		}
	case rulePipeline:
		v.lives(ReasonSearchPipeline)
	}
	return false, ""
}

// judgePreference tells whether a preference stays out of the key. even tells that copies of a shard give the same.
func (k *Keyer) judgePreference(a *arg, even bool, v *Verdict) (drop bool) {
	switch {
	case bytes.HasPrefix(a.value, []byte("_only_")), bytes.HasPrefix(a.value, []byte("_shards:")):
		v.lives(ReasonPreference)
		return false
	case len(a.value) == 0, a.value[0] == '_', a.raw, k.options.Preference == PreferenceKeep:
		return false
	}
	return even || k.options.Preference == PreferenceDrop
}

func (k *Keyer) keepsArg(name []byte) bool {
	for _, kept := range k.options.ExtraArgs {
		if string(name) == kept {
			return true
		}
	}
	return false
}

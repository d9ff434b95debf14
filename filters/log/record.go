package log

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"

	"weir/elastic"
	"weir/elastic/api"
	"weir/flows"
	"weir/internal/obs"
	"weir/internal/wire"
)

const (
	// maxText bounds each text of a record but bodies, in bytes: no longer than the longest request line that nodes take by
	// default, so that only header fields are ever cut.
	maxText = 4 << 10
	// maxKept bounds the memory that an encoder keeps from record to record.
	maxKept = 64 << 10
	// statusClientGone is what logs of proxies say of a client that left before it had an answer.
	statusClientGone = 499
)

// An encoder writes records.
type encoder struct {
	buf     []byte
	scratch []byte
	body    []byte // a body without its secrets
	redact  redactor
	shape   shaper

	second int64    // that stamp is for, since 1970
	stamp  [19]byte // as in a record, without what is less than a second
	ip     [2]int   // where the caller's address stands in buf, if there is one
}

func (e *encoder) release() {
	if max(cap(e.buf), cap(e.body), cap(e.shape.canonical), cap(e.shape.text)) <= maxKept {
		encoders.Put(e)
	}
}

// fields are the header fields of a request that a record has.
type fields struct {
	agent, opaqueID, traceParent, coding, authorization []byte
	size                                                int // of the head, in bytes
}

func fieldsOf(r *flows.Request) fields {
	f := fields{size: len(r.Method) + len(r.Target) + len("  HTTP/1.1\r\n\r\n")}
	for _, h := range r.Header.Fields() {
		f.size += len(h.Name) + len(h.Value) + len(": \r\n")
		switch {
		case wire.EqualFold(h.Name, "user-agent"):
			f.agent = h.Value
		case wire.EqualFold(h.Name, "x-opaque-id"):
			f.opaqueID = h.Value
		case wire.EqualFold(h.Name, "traceparent"):
			f.traceParent = h.Value
		case wire.EqualFold(h.Name, "content-encoding"):
			f.coding = h.Value
		case wire.EqualFold(h.Name, "authorization"):
			f.authorization = h.Value
		}
	}
	return f
}

// record returns the record of x as one line of JSON with fields of the Elastic Common Schema. Times are in nanoseconds, as
// event.duration is there. share is the part of such exchanges that have a record. It is valid until the next call.
func (e *encoder) record(x *flows.Exchange, fault *elastic.Error, names *ids, c *settings, share float64) []byte {
	head := fieldsOf(&x.Request)
	status := statusOf(x, fault)
	e.buf = append(e.buf[:0], `{"@timestamp":"`...)
	e.time(x.Start)
	e.raw(`","event":{"id":"`)
	e.buf = names.append(e.buf, x.Start)
	e.raw(`","kind":"event","duration":`)
	e.int(int64(max(0, time.Since(x.Start))))
	e.raw(`,"outcome":"`)
	e.raw(resultOf(x.Trace.Outcome, status))
	e.raw(`"}`)
	e.http(x, &head, status, c)
	e.raw(`,"url":{"path":`)
	e.text(withoutUser(x.Request.Path))
	if len(x.Request.Query) > 0 {
		e.raw(`,"query":`)
		e.query(x.Request.Query)
	}
	e.raw(`}`)
	e.client(x, &head)
	e.elasticsearch(x.Call(), head.opaqueID)
	e.weir(x, &head, c, share)
	if fault != nil {
		e.raw(`,"error":{"type":`)
		e.text(bytesOf(fault.Type))
		e.raw(`,"message":`)
		e.text(bytesOf(messageOf(fault)))
		e.raw(`}`)
	}
	e.raw(`}`)
	return e.buf
}

// statusOf returns the status that the client got.
func statusOf(x *flows.Exchange, fault *elastic.Error) int {
	switch {
	case x.Trace.Outcome == flows.ClientGone:
		return statusClientGone
	case fault != nil:
		return fault.Status
	}
	return x.Response.Status
}

// resultOf returns the value of event.outcome. Of an exchange that the client left nobody knows how it would have ended.
func resultOf(o flows.Outcome, status int) string {
	switch {
	case o == flows.ClientGone || status == 0:
		return "unknown"
	case status >= 400:
		return "failure"
	}
	return "success"
}

// messageOf returns the reason of fault with its cause, which the client was not told.
func messageOf(fault *elastic.Error) string {
	if fault.Cause == nil {
		return obs.RedactText(fault.Reason)
	}
	return obs.RedactText(fault.Reason) + ": " + obs.RedactError(fault.Cause).Error()
}

func (e *encoder) http(x *flows.Exchange, head *fields, status int, c *settings) {
	read, known := x.RequestBytes, x.Tracing
	if !known {
		read = x.Request.Body.Len()
		known = read >= 0
	}
	if x.Request.HTTP10 {
		e.raw(`,"http":{"version":"1.0","request":{"method":`)
	} else {
		e.raw(`,"http":{"version":"1.1","request":{"method":`)
	}
	e.text(x.Request.Method)
	if known {
		e.number(`,"bytes":`, int64(head.size)+read)
		e.raw(`,"body":{"bytes":`)
		e.int(read)
		if content := e.bodyOf(&x.Request.Body, int64(c.RequestBody), head.coding, x.Call(), c.hide); content != nil {
			e.raw(`,"content":`)
			e.buf = appendText(e.buf, content, len(content))
		}
		e.raw(`}`)
	}
	e.raw(`},"response":{"status_code":`)
	e.int(int64(status))
	if x.Tracing {
		e.number(`,"bytes":`, x.ResponseBytes)
	}
	coding := x.Response.Header.Get("content-encoding")
	if content := e.bodyOf(&x.Response.Body, int64(c.ResponseBody), coding, x.Call(), c.hide); content != nil {
		e.raw(`,"body":{"content":`)
		e.buf = appendText(e.buf, content, len(content))
		e.raw(`}`)
	}
	e.raw(`}}`)
}

// bodyOf returns the beginning of a body for a record, with secrets hidden. It is nil where none is wanted, where the body is
// not in memory or not plain JSON, and for APIs to which callers send secrets. It is valid until the next call.
func (e *encoder) bodyOf(b *flows.Body, most int64, coding []byte, call *api.Call, hide []fieldPath) []byte {
	if most == 0 || secretBodies(call) {
		return nil
	}
	data := plainJSON(b, coding)
	if data == nil {
		return nil
	}
	// What is hidden may be longer than the mark for it, so more is read than is written, but not all of what may be large.
	data = data[:min(len(data), 2*int(most)+maxText)]
	e.body = e.redact.append(e.body[:0], data, hide)
	if int64(len(e.body)) >= most {
		return withoutUser(withoutCutURL(whole(e.body, int(most))))
	}
	return withoutUser(e.body)
}

// plainJSON returns a body that is in memory, not compressed, and looks like JSON, or nil.
func plainJSON(b *flows.Body, coding []byte) []byte {
	if !b.Buffered() || len(coding) > 0 && !wire.EqualFold(coding, "identity") {
		return nil
	}
	data, err := b.Bytes(math.MaxInt64)
	data = bytes.TrimLeft(data, " \t\r\n")
	if err != nil || len(data) == 0 || data[0] != '{' && data[0] != '[' {
		return nil
	}
	return data
}

// withoutCutURL cuts a URL off that may go on behind the end of text: there it would show whether it has a user part.
func withoutCutURL(text []byte) []byte {
	i := obs.LastURL(stringOf(text))
	if i < 0 || bytes.ContainsAny(text[i:], " \t\r\n\"<>") {
		return text
	}
	return text[:i]
}

// secretAPIs are what the names of APIs begin with whose bodies carry passwords, keys, or addresses that are as good as keys
// (those of web hooks).
var secretAPIs = []string{
	"cluster.get_settings", "cluster.put_settings", "connector.", "esql.get_data_source", "esql.put_data_source", "fleet.get_secret",
	"fleet.post_secret", "flow_framework.", "inference.put", "inference.update", "ism.get_polic", "ism.put_polic", "license.post",
	"logstash.", "ml.create_connector", "ml.get_connector", "ml.register_model", "ml.search_connectors", "ml.update_connector",
	"ml.update_model", "nodes.reload_secure_settings", "notifications.", "query.datasource", "reindex", "security.",
	"snapshot.create_repository", "snapshot.get_repository", "watcher.",
}

// secretBodies tells whether bodies of a call carry secrets by nature. Of a call that is not known, but for those to an index,
// nobody can tell: the plugins that send messages have such APIs.
func secretBodies(call *api.Call) bool {
	if call.Name == "" {
		return len(call.Index) == 0
	}
	for _, s := range secretAPIs {
		if strings.HasPrefix(call.Name, s) {
			return true
		}
	}
	return false
}

// client writes who asked, and notes where the address stands.
func (e *encoder) client(x *flows.Exchange, head *fields) {
	r := &x.Request
	if ip := r.ClientIP; ip.IsValid() {
		e.raw(`,"source":{"ip":"`)
		e.ip[0] = len(e.buf)
		e.buf = ip.Unmap().WithZone("").AppendTo(e.buf) // the type ip of a mapping takes no zones
		e.ip[1] = len(e.buf)
		e.raw(`"`)
		if r.Peer.Addr() == ip {
			e.number(`,"port":`, int64(r.Peer.Port()))
		}
		e.raw(`}`)
	}
	if len(r.User) > 0 {
		e.raw(`,"user":{"name":`)
		e.text(r.User)
		e.raw(`}`)
	}
	if len(head.agent) > 0 {
		e.raw(`,"user_agent":{"original":`)
		e.text(withoutUser(head.agent))
		e.raw(`,"name":`)
		e.scratch = appendFamily(e.scratch[:0], head.agent)
		e.text(e.scratch)
		e.raw(`}`)
	}
	if trace, span := traceOf(head.traceParent); trace != nil {
		e.raw(`,"trace":{"id":"`)
		e.buf = append(e.buf, trace...)
		e.raw(`"},"span":{"id":"`)
		e.buf = append(e.buf, span...)
		e.raw(`"}`)
	}
}

// elasticsearch writes what the request asked the cluster for.
func (e *encoder) elasticsearch(call *api.Call, opaqueID []byte) {
	e.raw(`,"elasticsearch":{"class":"`)
	e.raw(call.Class.String())
	e.raw(`"`)
	e.string(`,"api":`, call.Name)
	if len(call.Index) > 0 {
		e.scratch = api.DecodeSegment(e.scratch[:0], call.Index)
		e.raw(`,"index":[`)
		for rest, more := withoutUser(e.scratch), true; more; {
			var name []byte
			name, rest, more = bytes.Cut(rest, comma)
			if len(name) == 0 {
				continue
			}
			if e.buf[len(e.buf)-1] != '[' {
				e.raw(`,`)
			}
			e.text(name)
		}
		e.raw(`]`)
	}
	if len(opaqueID) > 0 {
		e.raw(`,"http":{"request":{"x_opaque_id":`)
		e.text(withoutUser(opaqueID))
		e.raw(`}}`)
	}
	e.raw(`}`)
}

var comma = []byte{','}

// weir writes what the gateway did.
func (e *encoder) weir(x *flows.Exchange, head *fields, c *settings, share float64) {
	t := &x.Trace
	e.raw(`,"weir":{"outcome":"`)
	e.raw(t.Outcome.String())
	e.raw(`"`)
	e.string(`,"entry":`, x.Entry)
	e.string(`,"flow":`, t.Flow)
	e.string(`,"limit":`, t.Limit)
	if len(t.Cache) > 0 {
		e.raw(`,"cache":`)
		e.text(t.Cache)
		if t.Outcome == flows.Hit || t.Outcome == flows.Shared {
			e.raw(`,"hit":1`)
		} else {
			e.raw(`,"hit":0`)
		}
	}
	if x.Tracing {
		e.number(`,"write":`, int64(x.WriteTime))
	}
	e.caller(&x.Request, head)
	if c.Shapes {
		if id, text := e.shape.of(x, head.coding); id != 0 {
			e.raw(`,"query":{"fingerprint":"`)
			e.buf = appendHex(e.buf, id)
			e.raw(`","shape":`)
			e.buf = appendText(e.buf, text, maxShape)
			e.raw(`}`)
		}
	}
	e.headers(&x.Request, c.headers)
	if c.Sample < 100 {
		e.raw(`,"sample":`)
		e.buf = strconv.AppendFloat(e.buf, share, 'g', -1, 64)
	}
	if t.Attempts > 0 {
		e.raw(`,"upstream":{"attempts":`)
		e.int(int64(t.Attempts))
		e.string(`,"cluster":`, t.Cluster)
		e.string(`,"node":`, t.Node)
		e.number(`,"queue":`, int64(t.Queued))
		e.number(`,"connect":`, int64(t.Connect))
		e.number(`,"first_byte":`, int64(t.FirstByte))
		e.number(`,"total":`, int64(t.Upstream))
		e.raw(`}`)
	}
	e.raw(`}`)
}

// time writes a time to the millisecond. Most records are of the same second as the one before.
func (e *encoder) time(t time.Time) {
	ms := t.UnixMilli()
	second := ms / 1000
	if ms < 0 || second > maxSecond {
		e.buf = t.UTC().AppendFormat(e.buf, "2006-01-02T15:04:05.000Z")
		return
	}
	if second != e.second || e.stamp[0] == 0 {
		e.second = second
		t.UTC().AppendFormat(e.stamp[:0], "2006-01-02T15:04:05")
	}
	ms %= 1000
	e.buf = append(append(e.buf, e.stamp[:]...), '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z')
}

// maxSecond is the last second, since 1970, of a year of four digits.
const maxSecond = 253402300799

func (e *encoder) raw(s string) { e.buf = append(e.buf, s...) }

func (e *encoder) int(n int64) { e.buf = strconv.AppendInt(e.buf, n, 10) }

// number writes a member. before is what stands before its value, so that it is copied at once.
func (e *encoder) number(before string, n int64) {
	e.raw(before)
	e.int(n)
}

// string writes a member like number, unless it is empty.
func (e *encoder) string(before, s string) {
	if s == "" {
		return
	}
	e.raw(before)
	e.text(bytesOf(s))
}

func (e *encoder) text(b []byte) { e.buf = appendText(e.buf, b, maxText) }

// query writes a raw query string with what may be secrets hidden.
func (e *encoder) query(q []byte) {
	e.scratch = appendQuery(e.scratch[:0], q)
	e.text(withoutUser(e.scratch))
}

// appendQuery appends a raw query string with the values of parameters that carry secrets hidden. Such a value ends at the next
// & only: nodes take a semicolon for a separator as well, and a secret that holds one would otherwise show its end. User parts
// of URLs are hidden first within each parameter, so that hiding a value cannot cut them in two. Values may be URLs with
// parameters themselves.
func appendQuery(dst, q []byte) []byte {
	for len(q) > 0 {
		n := separator(q, "&")
		param := withoutUser(q[:n])
		for len(param) > 0 {
			end := separator(param, ";?#")
			name, _, hasValue := bytes.Cut(param[:end], equals)
			if hasValue && secretParam(name) {
				dst = append(append(append(dst, name...), '='), obs.Redacted...)
				break
			}
			end = min(end+1, len(param))
			dst = append(dst, param[:end]...)
			param = param[end:]
		}
		if n < len(q) {
			dst = append(dst, '&')
			n++
		}
		q = q[n:]
	}
	return dst
}

var equals = []byte{'='}

// separator returns where the first of the separators stands, or the length of q.
func separator(q []byte, separators string) int {
	if i := bytes.IndexAny(q, separators); i >= 0 {
		return i
	}
	return len(q)
}

// longestParam is the longest name of a parameter, in bytes, that is looked at.
const longestParam = 64

// secretParam tells whether the value of a parameter may be a secret by its name. Nodes decode names, so an escape must not
// hide one. A name that is too long to be looked at is taken for one. source is the body of a search, which records have only
// where the configuration asks for bodies.
func secretParam(raw []byte) bool {
	var buf [longestParam]byte
	if len(raw) > 3*longestParam {
		return true
	}
	decoded := api.DecodeQuery(buf[:0], raw)
	return len(decoded) > longestParam || string(decoded) == "source" || obs.SecretName(decoded)
}

// withoutUser hides the user parts of URLs in a text. It copies only when there is one to hide.
func withoutUser(text []byte) []byte {
	shown := stringOf(text)
	if clean := obs.RedactText(shown); clean != shown {
		return []byte(clean)
	}
	return text
}

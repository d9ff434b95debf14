package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A probe is what is sent over one connection, to a node and through the gateway, and answered by both alike. Since the two
// meet in one cluster, what changes something names things of its own: ~ stands for a letter that is another for each side.
type probe struct {
	kind string // in docs/compatibility.md
	name string
	raw  []string // what is sent, each part when the parts before were answered, "" for none
	// loose probes have answers that differ from one moment to the next: their numbers are not compared.
	loose bool
	// momentary probes have answers whose bodies are not compared at all.
	momentary bool
	// ends tells that the connection must end after the last answer. It must not where it is false.
	ends bool
	// changes tells that the probe may change or delete the index, which is then made anew before the next one.
	changes bool
}

// A side is one of the two ways to the node.
type side struct {
	name, letter, addr string
	conn               *wireConn
}

// A reply is an answer as it came: the interim ones before it, the status line, the fields and the body.
type reply struct {
	interim []string
	line    string
	fields  []string
	body    string
}

// testDifferential compares what a node answers directly with what it answers through a gateway that has nothing but an
// entry, a flow and a cluster. docs/compatibility.md lists the differences that are meant.
func testDifferential(t *testing.T, cluster, engine string) {
	node := strings.TrimPrefix(cluster, "http://")
	g := newPlainSite(t, cluster, "").start()
	awaitNodes(t, g, 1)
	direct, through := &side{name: "node", letter: "a", addr: node}, &side{name: "gateway", letter: "b", addr: g.addr}
	t.Cleanup(func() {
		direct.hangUp()
		through.hangUp()
	})
	client := newClient(t)
	probes := append(apiProbes(t, engine), oddProbes(engine)...)
	deleteAll(t, client, cluster, "*") // what lists all indices may list many in any order
	makeTwins(t, client, cluster)
	t.Cleanup(func() { // a setting that a probe makes
		_, err := ask(context.Background(), client, http.MethodPut, cluster+"/_cluster/settings", `{"transient":{"cluster.*":null},"persistent":{"cluster.*":null}}`)
		if err != nil {
			t.Error(err)
		}
	})
	answered, changed := 0, false
	for _, p := range probes {
		if changed && p.about() {
			makeTwins(t, client, cluster)
			changed = false
		}
		want, got := direct.play(p), through.play(p)
		if p.about() {
			want.disown(direct.letter)
			got.disown(through.letter)
		}
		if want.hungUp() {
			// What a node leaves without an answer is answered by the gateway.
			if len(got.replies) != 1 || !strings.HasPrefix(got.replies[0].line, "HTTP/1.1 502 ") || !strings.Contains(got.replies[0].body, "closed the connection before it answered") {
				t.Errorf("%s: the node hung up, the gateway's answer is\n%s\nwant 502", p.name, got.text(p))
			}
			continue
		}
		if diff := difference(p, want, got); diff != "" {
			t.Errorf("%s (-node +gateway):\n%s\nsent:\n%s", p.name, diff, abridge(strings.Join(p.raw, "\n--\n"), 600))
		}
		if want.answered() {
			answered++
		}
		changed = changed || p.changes && want.succeeded()
	}
	t.Logf("%d requests, of which the node serves %d", len(probes), answered)
	if answered < 300 {
		t.Errorf("the node serves %d of %d requests, want 300", answered, len(probes))
	}
}

// A scene is what came back for a probe: the replies, and how the connection was left.
type scene struct {
	replies []reply
	err     error // what went wrong with the connection, nil if nothing did
	ended   bool  // the connection ended behind the last reply
}

// answered tells whether the node has a handler for what was asked.
func (s scene) answered() bool {
	if len(s.replies) == 0 {
		return false
	}
	last := s.replies[len(s.replies)-1]
	return !strings.Contains(last.body, "no handler found for uri") && !strings.HasPrefix(last.line, "HTTP/1.1 405 ")
}

// hungUp tells whether the connection ended before there was an answer.
func (s scene) hungUp() bool {
	return len(s.replies) == 0 && (errors.Is(s.err, io.EOF) || errors.Is(s.err, syscall.ECONNRESET))
}

// succeeded tells whether the last answer is 2xx.
func (s scene) succeeded() bool {
	return len(s.replies) > 0 && strings.HasPrefix(s.replies[len(s.replies)-1].line, "HTTP/1.1 2")
}

// about tells whether a probe is about what each side has for itself.
func (p probe) about() bool { return strings.Contains(strings.Join(p.raw, ""), "~") }

func (s *side) hangUp() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// exchangeLimit is how long the two sides may take for an answer.
const exchangeLimit = 20 * time.Second

// play sends a probe and reads what comes back. It uses the connection of the probes before, as clients do.
func (s *side) play(p probe) (out scene) {
	fail := func(err error) scene {
		s.hangUp()
		out.err = err
		return out
	}
	if s.conn == nil {
		if s.conn, out.err = dialWire(s.addr); out.err != nil {
			return out
		}
	}
	id := ""
	for _, raw := range p.raw {
		raw = strings.ReplaceAll(raw, "~", s.letter)
		if len(out.replies) > 0 {
			raw = fillIn(raw, out.replies[len(out.replies)-1].body, &id)
		}
		if err := s.conn.SetDeadline(time.Now().Add(exchangeLimit)); err != nil {
			return fail(err)
		}
		if _, err := io.WriteString(s.conn, raw); err != nil {
			return fail(err)
		}
		for _, head := range requestMethods(raw) {
			r, err := s.conn.readReply(head == http.MethodHead)
			if err != nil {
				return fail(err)
			}
			r.decode()
			out.replies = append(out.replies, r)
		}
	}
	if p.ends {
		defer s.hangUp()
		if err := s.conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return fail(err)
		}
		rest, err := io.ReadAll(s.conn.r)
		out.ended = err == nil && len(rest) == 0
	}
	return out
}

// idInAnswer is what a node calls something that it keeps for its client.
var idInAnswer = regexp.MustCompile(`"(?:_scroll_id|pit_id)" ?: ?"([^"]+)"`)

// fillIn puts the id that came last, which may be in answer, and the length of the body into a request.
func fillIn(raw, answer string, id *string) string {
	if m := idInAnswer.FindStringSubmatch(answer); m != nil {
		*id = m[1]
	}
	raw = strings.ReplaceAll(raw, "@ID@", *id)
	_, body, _ := strings.Cut(raw, "\r\n\r\n")
	return strings.ReplaceAll(raw, "@LENGTH@", strconv.Itoa(len(body)))
}

var requestLine = regexp.MustCompile(`(?m)^(GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE|BREW) \S.* HTTP/1\.[01]\r$`)

// requestMethods returns the methods of the requests that raw begins. A body on its own ends one that was begun before: it
// has an answer too.
func requestMethods(raw string) (methods []string) {
	for _, m := range requestLine.FindAllStringSubmatch(raw, -1) {
		methods = append(methods, m[1])
	}
	if methods == nil && raw != "" {
		methods = []string{"body"}
	}
	return methods
}

// readReply reads an answer as it comes.
func (c *wireConn) readReply(head bool) (r reply, err error) {
	for {
		lines, err := readLines(c.r)
		if err != nil {
			return r, fmt.Errorf("read the head of an answer: %w after %q", err, lines)
		}
		r.line, r.fields = lines[0], lines[1:]
		if !strings.HasPrefix(r.line, "HTTP/1.1 1") {
			break
		}
		r.interim = append(r.interim, r.line)
		if strings.HasPrefix(r.line, "HTTP/1.1 100 ") {
			return r, nil // the body is what it waits for
		}
	}
	status, _, _ := strings.Cut(r.line[min(len("HTTP/1.1 "), len(r.line)):], " ")
	if head || status == "204" || status == "304" {
		return r, nil
	}
	switch length, chunked := r.field("content-length"), r.field("transfer-encoding"); {
	case chunked != "":
		r.body, err = readChunked(c.r)
	case length != "":
		n, convErr := strconv.Atoi(length)
		if convErr != nil {
			return r, convErr
		}
		body := make([]byte, n)
		_, err = io.ReadFull(c.r, body)
		r.body = string(body)
	default:
		body, readErr := io.ReadAll(c.r)
		r.body, err = string(body), readErr
	}
	return r, err
}

func readLines(r *bufio.Reader) (lines []string, err error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return append(lines, line), err
		}
		text, ok := strings.CutSuffix(line, "\r\n")
		if !ok {
			return append(lines, line), errors.New("bare line feed")
		}
		if text == "" && len(lines) > 0 {
			return lines, nil
		}
		lines = append(lines, text)
	}
}

// readChunked reads a chunked body without trailers.
func readChunked(r *bufio.Reader) (string, error) {
	var body bytes.Buffer
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return body.String(), err
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(line, "\r\n"), 16, 64)
		if err != nil {
			return body.String(), err
		}
		if _, err := io.CopyN(&body, r, n); err != nil {
			return body.String(), err
		}
		end := make([]byte, 2)
		if _, err := io.ReadFull(r, end); err != nil || string(end) != "\r\n" {
			return body.String(), fmt.Errorf("chunk ends with %q: %w", end, err)
		}
		if n == 0 {
			return body.String(), nil
		}
	}
}

// field returns the first value of a field, by its name in lower case.
func (r reply) field(name string) string {
	for _, f := range r.fields {
		if n, value, ok := strings.Cut(f, ":"); ok && strings.EqualFold(n, name) {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// disown writes ~ for a side's letter wherever it has things of its own.
func (s *scene) disown(letter string) {
	names := strings.NewReplacer("twin-"+letter, "twin-~", "other-"+letter, "other-~", "made-"+letter, "made-~")
	for i := range s.replies {
		r := &s.replies[i]
		r.body = names.Replace(r.body)
		for j, f := range r.fields {
			r.fields[j] = names.Replace(f)
		}
	}
}

// difference returns what a reader would call a difference between two scenes, "" if there is none.
func difference(p probe, want, got scene) string {
	if reflect.DeepEqual(want, got) {
		return "" // most are, and looking closer takes longer than asking
	}
	return cmp.Diff(want.text(p), got.text(p))
}

// text writes a scene for comparing and for reading: without what is another for each side or for each moment.
func (s scene) text(p probe) string {
	var lines []string
	for _, r := range s.replies {
		lines = append(lines, r.interim...)
		// The version is the sender's own (RFC 9110, section 2.5): a node takes over that of a request with HTTP/1.0.
		_, line, _ := strings.Cut(r.line, " ")
		lines = append(lines, line)
		fields := r.fields
		body := "*"
		if !p.momentary {
			body = unlike(r.body, p.loose)
		}
		if body != r.body { // what is another each time has another length too
			fields = slices.Clone(fields)
			hideLength(fields)
		}
		for _, f := range fields {
			if strings.HasPrefix(strings.ToLower(f), "connection:") {
				continue // about the connection between the two, see probe.ends
			}
			lines = append(lines, unlike(f, p.loose && !strings.HasPrefix(strings.ToLower(f), "content-")))
		}
		lines = append(lines, "")
		parts := strings.SplitAfter(breakable.ReplaceAllString(abridge(body, 20_000), "\n$0\n"), "\n")
		if p.loose {
			slices.Sort(parts) // what a node lists out of a hash table comes in an order that depends on the names
		}
		lines = append(lines, strings.Join(parts, ""))
	}
	switch {
	case s.err != nil:
		lines = append(lines, "connection: "+connectionEnd(s.err))
	case s.ended:
		lines = append(lines, "connection: ended")
	}
	return strings.Join(lines, "\n")
}

// connectionEnd tells in one word how a connection broke, without the addresses.
func connectionEnd(err error) string {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "silent"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed"
	}
	return err.Error()
}

func abridge(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", text[:n], len(text))
}

// What is another for each request: times, and ids that the node makes.
var (
	names     = regexp.MustCompile(`(simulate_(?:index_)?template_)[a-z0-9_-]{22}`)
	moments   = regexp.MustCompile(`("(?:took|[a-z_]*_in_millis|[a-z_]*_in_nanos|[a-z_]*_date|[a-z_]*_millis|creation_time|timestamp|epoch|created|build_date)" ?: ?)"?[-0-9T:.Z]+"?`)
	words     = regexp.MustCompile(`[A-Za-z0-9_-]+={0,2}`)
	measures  = regexp.MustCompile(`[0-9]+(\.[0-9]+)?([kmgt]?b|%|ms|s|m|h|d|micros|nanos)?`)
	breakable = regexp.MustCompile(`[{},\[\]]`) // where long lines of JSON are broken, so that a difference can be read
	spaces    = regexp.MustCompile(` +`)
)

// decode decodes a body that is coded with gzip: names of one length need not be one when coded.
func (r *reply) decode() {
	if r.field("content-encoding") != "gzip" {
		return
	}
	body, err := gzip.NewReader(strings.NewReader(r.body))
	if err != nil {
		return
	}
	if text, err := io.ReadAll(body); err == nil {
		r.body = string(text)
		hideLength(r.fields)
	}
}

// hideLength takes the number out of Content-Length. That it is the body's, the reader has seen.
func hideLength(fields []string) {
	for i, f := range fields {
		if strings.HasPrefix(strings.ToLower(f), "content-length:") {
			fields[i] = f[:len("content-length:")] + " of the body"
		}
	}
}

// unlike writes * for what is another each time.
func unlike(text string, loose bool) string {
	text = names.ReplaceAllString(text, "$1*")
	text = moments.ReplaceAllString(text, "$1*")
	text = words.ReplaceAllStringFunc(text, func(word string) string {
		if n := len(word); (n == 20 || n == 22 || n >= 40) && strings.ToLower(word) != word {
			return "*" // an id
		}
		return word
	})
	if loose {
		text = spaces.ReplaceAllString(measures.ReplaceAllString(text, "*"), " ")
	}
	return text
}

package limit

import (
	"bytes"
	"io"
	"math"

	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/wire"
)

// weigh reads the request's body and counts what is in it: the documents of a bulk, the searches of an _msearch. If a limit needs
// to know which indices the body names, it finds them.
func (s *scratch) weigh(x *flows.Exchange) (int64, error) {
	body, err := x.Request.Body.Bytes(math.MaxInt64)
	if err != nil {
		return 0, err
	}
	if s.byIndex && s.from >= query.InDocs {
		s.weighWhole(x, body)
		return 1, nil
	}
	var into *indices
	if s.byIndex {
		into = &s.indices
	}
	s.lines.reset(x.Call().Class == api.ClassSearch, into)
	known, readable := s.inflated.inflate(x, body, &s.lines)
	if !known {
		s.lines.guess(len(body)) // a node may know the coding, or take the body as it is
	}
	s.lines.unread = s.lines.unread || !readable
	n := s.lines.count()
	switch {
	case !s.byIndex:
	case s.lines.unread && s.from == query.InSearches:
		s.indices.searchAll(n)
	case len(s.indices.named) > 0:
	case s.from == query.InSearches: // no body, but perhaps one in the URL
		s.indices.searchAll(n)
	default:
		s.indices.writeUnknown(n, int64(len(body)))
	}
	return n, nil
}

// weighWhole finds the indices that a body names which is one object.
func (s *scratch) weighWhole(x *flows.Exchange, body []byte) {
	if len(x.Request.Header.Get("content-encoding")) > 0 {
		s.whole = s.whole[:0]
		if _, readable := s.inflated.inflate(x, body, &s.whole); !readable || len(s.whole) > longestWhole {
			s.whole = s.whole[:0] // which names every index
		}
		body = s.whole
	}
	if s.from == query.InDocs {
		s.indices.docs(body)
		return
	}
	s.indices.time(body)
}

// longestWhole is how much of an object is kept that was inflated: ten thousand documents and more.
const longestWhole = 1 << 20

// whole keeps what is written to it, up to a byte more than longestWhole.
type whole []byte

// Write never fails.
func (w *whole) Write(p []byte) (int, error) {
	*w = append(*w, p[:min(len(p), longestWhole+1-len(*w))]...)
	return len(p), nil
}

// mostInflated is how much of a compressed body is looked at. Nodes take no bulk that is larger.
const mostInflated = 256 << 20

// An inflater is the memory for inflating bodies, which is used again. What is wrong with a body is for nodes to say: it is read
// as far as it can be.
type inflater struct {
	wire  wire.Inflater
	piece []byte
}

// inflate writes the body of x to a writer as nodes read it. It tells whether it is of a kind that is known here, and whether all
// was looked at that can be read.
func (f *inflater) inflate(x *flows.Exchange, body []byte, to io.Writer) (known, readable bool) {
	if wire.BinaryMedia(x.Request.Header.Get("content-type")) {
		return false, false
	}
	from, err := f.wire.Open(x.Request.Header.Get("content-encoding"), body)
	if err != nil {
		return err != wire.ErrContentCoding, err != wire.ErrContentCoding
	}
	if plain, ok := from.(*bytes.Reader); ok { // there is nothing to inflate: it is read where it lies
		_, _ = plain.WriteTo(to) // never fails
		return true, true
	}
	return true, f.copy(from, to)
}

func (f *inflater) copy(from io.Reader, to io.Writer) bool {
	if f.piece == nil {
		f.piece = make([]byte, 16<<10)
	}
	for total := 0; total < mostInflated; {
		n, err := from.Read(f.piece)
		_, _ = to.Write(f.piece[:n]) // a lineCounter
		if total += n; err != nil {
			return true
		}
	}
	return false
}

// longestAction is how much of an action's line is read. Nodes would read more, but hardly anything beside dynamic_templates
// makes a line long.
const longestAction = 64 << 10

// A lineCounter counts actions or searches by their lines, in whatever pieces they come. It keeps the line of one action.
type lineCounter struct {
	searches bool
	into     *indices // that count actions and searches by index, or nil
	lines    int64    // of searches
	actions  int64
	unread   bool // there are actions that cannot be read, in which a node might see other indices
	source   bool // the next line belongs to the action before
	all      bool // every line may be a first one: the body begins with an empty line (see query.SearchIndices)
	line     []byte
	length   int64 // of the line, with its end
	blank    bool
	open     bool // a line has begun
	scanner  bulk.Scanner
}

// reset makes c ready for another body.
func (c *lineCounter) reset(searches bool, into *indices) {
	*c = lineCounter{searches: searches, into: into, line: c.line[:0], scanner: c.scanner}
}

// Write counts the lines that end in p. It never fails.
func (c *lineCounter) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		if !c.open {
			c.open, c.blank, c.line, c.length = true, true, c.line[:0], 0
		}
		c.length += int64(len(p) - len(rest))
		c.blank = c.blank && len(bytes.TrimSpace(line)) == 0
		if c.keeps() {
			c.line = append(c.line, line[:min(len(line), longestAction-len(c.line))]...)
		}
		if ended {
			c.end()
		}
		p = rest
	}
	return total, nil
}

// keeps tells whether the line is one that says what the next one is about.
func (c *lineCounter) keeps() bool {
	if c.searches {
		return c.into != nil && (c.lines%2 == 0 || c.all)
	}
	return !c.source
}

func (c *lineCounter) end() {
	c.open = false
	switch {
	case c.searches:
		c.all = c.all || c.lines == 0 && c.length == 1
		if c.keeps() {
			c.unread = c.unread || len(c.line) == longestAction
			c.into.search(c.line)
		}
		c.lines++
	case c.source:
		c.source = false
		if c.into != nil {
			c.into.named[c.into.slot].bytes += c.length
		}
	case !c.empty():
		c.action()
	}
}

var utf8BOM = []byte("\xef\xbb\xbf")

// empty tells whether the line of an action holds nothing, and is none then.
func (c *lineCounter) empty() bool {
	return c.blank || !c.source && len(c.line) < longestAction && bytes.Equal(bytes.TrimSpace(c.line), utf8BOM)
}

// guess counts a body of so many bytes that cannot be read. It holds hardly more documents than bytes.
func (c *lineCounter) guess(size int) {
	c.actions, c.lines, c.unread = int64(size), int64(size), true
}

// action counts the action in line. What follows one that cannot be read is counted as another one: it may be.
func (c *lineCounter) action() {
	c.actions++
	a, ok := c.scanner.ReadLine(c.line)
	c.source = ok && a.Verb != bulk.Delete
	c.unread = c.unread || !ok
	switch {
	case c.into == nil:
	case ok:
		c.into.write(a.Index, c.length)
	default:
		c.into.writeUnknown(1, c.length)
	}
}

// count returns what was counted, at least 1. A last line without an end counts.
func (c *lineCounter) count() int64 {
	if c.open && !c.empty() {
		c.end()
	}
	if c.searches {
		return max(1, (c.lines+1)/2)
	}
	return max(1, c.actions)
}

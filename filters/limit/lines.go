package limit

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"io"
	"math"

	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/flows"
	"weir/internal/wire"
)

// weigh reads the request's body and counts what is in it: the documents of a bulk, the searches of an _msearch. With byIndex
// the documents are counted in s.indices as well.
func (s *scratch) weigh(x *flows.Exchange, byIndex bool) (int64, error) {
	body, err := x.Request.Body.Bytes(math.MaxInt64)
	if err != nil {
		return 0, err
	}
	var into *indices
	if byIndex {
		into = &s.indices
	}
	s.lines.reset(x.Call().Class == api.ClassSearch, into)
	coding := x.Request.Header.Get("content-encoding")
	switch {
	case isBinary(x.Request.Header.Get("content-type")):
		s.lines.guess(len(body))
	case len(coding) == 0, wire.EqualFold(coding, "identity"):
		_, _ = s.lines.Write(body) // never fails
	case wire.EqualFold(coding, "gzip"), wire.EqualFold(coding, "x-gzip"):
		s.lines.unread = !s.inflated.gzip(body, &s.lines) || s.lines.unread
	case wire.EqualFold(coding, "deflate"), wire.EqualFold(coding, "x-deflate"):
		s.lines.unread = !s.inflated.deflate(body, &s.lines) || s.lines.unread
	default:
		s.lines.guess(len(body)) // a node may know the coding, or take the body as it is
	}
	n := s.lines.count()
	if byIndex && len(s.indices.named) == 0 {
		s.indices.writeUnknown(n, int64(len(body)))
	}
	return n, nil
}

// isBinary tells whether a body has no lines: nodes take bulks in SMILE too, whose documents another byte separates.
func isBinary(mediaType []byte) bool {
	for _, format := range [...]string{"smile", "cbor"} {
		for i := 0; i+len(format) <= len(mediaType); i++ {
			if wire.EqualFold(mediaType[i:i+len(format)], format) {
				return true
			}
		}
	}
	return false
}

// mostInflated is how much of a compressed body is looked at. Nodes take no bulk that is larger.
const mostInflated = 256 << 20

// An inflater is the memory for inflating bodies, which is used again. What is wrong with a body is for nodes to say: it is read
// as far as it can be.
type inflater struct {
	body  bytes.Reader
	zip   gzip.Reader
	raw   io.ReadCloser // made by flate, a flate.Resetter
	piece []byte
}

// gzip inflates body, and tells whether all was looked at that can be read.
func (f *inflater) gzip(body []byte, to io.Writer) bool {
	f.body.Reset(body)
	return f.zip.Reset(&f.body) != nil || f.copy(&f.zip, to)
}

// deflate inflates what HTTP calls deflate: the format of zlib, and also the bare stream, which clients have sent under that name
// (RFC 9110 section 8.4.1.2) and nodes read as well. It tells whether all was looked at that can be read.
func (f *inflater) deflate(body []byte, to io.Writer) bool {
	if len(body) > 2 && body[0]&0x0f == 8 && (int(body[0])<<8|int(body[1]))%31 == 0 { // RFC 1950 section 2.2
		body = body[2:]
	}
	f.body.Reset(body)
	if f.raw == nil {
		f.raw = flate.NewReader(&f.body)
	} else if again, ok := f.raw.(flate.Resetter); !ok || again.Reset(&f.body, nil) != nil {
		return true
	}
	return f.copy(f.raw, to)
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
	into     *indices // that count the actions by index, or nil
	lines    int64    // of searches
	actions  int64
	unread   bool // there are actions that cannot be read, in which a node might see other indices
	source   bool // the next line belongs to the action before
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
		if !c.searches && !c.source {
			c.line = append(c.line, line[:min(len(line), longestAction-len(c.line))]...)
		}
		if ended {
			c.end()
		}
		p = rest
	}
	return total, nil
}

func (c *lineCounter) end() {
	c.open = false
	switch {
	case c.searches:
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

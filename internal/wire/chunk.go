package wire

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrChunk is a fault of a body in the chunked transfer coding.
var ErrChunk = errors.New("malformed chunk")

// maxChunkLine bounds the line before a chunk: a size, and extensions, which nobody uses.
const maxChunkLine = 1 << 10

// maxTrailer bounds the trailers behind the last chunk.
const maxTrailer = 16 << 10

type chunkState uint8

const (
	chunkSize chunkState = iota // a line with the size of a chunk
	chunkData                   // left bytes of a chunk
	chunkEnd                    // the line end behind a chunk
	chunkTail                   // trailer lines until an empty one
	chunkDone
)

// Chunks decodes the chunked transfer coding (RFC 9112 section 7.1) without copying: it tells framing from data in what
// came. It is strict, since two readers that disagree about a body's end disagree about the next request: sizes are
// hexadecimal digits only, and all lines end with CRLF. Trailers are checked like header fields and thrown away (RFC 9110
// section 6.5.1 allows it). The zero value is ready for a body.
type Chunks struct {
	state   chunkState
	left    int64
	trailer int // bytes of trailers seen
	fields  Header
}

// Left returns how many bytes of data come next; 0 if framing comes next.
func (c *Chunks) Left() int64 {
	if c.state == chunkData {
		return c.left
	}
	return 0
}

// Took says that n of the Left bytes were taken.
func (c *Chunks) Took(n int) {
	if c.left -= int64(n); c.left == 0 {
		c.state = chunkEnd
	}
}

// Done tells whether the body has ended.
func (c *Chunks) Done() bool { return c.state == chunkDone }

// Reset makes c ready for another body.
func (c *Chunks) Reset() {
	c.fields.Reset()
	*c = Chunks{fields: c.fields}
}

// Frame reads framing at the beginning of in and returns how many bytes of it are read: until data comes, the body is done,
// or more must come, which it must get behind what it left. in may be empty.
func (c *Chunks) Frame(in []byte) (int, error) {
	used := 0
	for c.state != chunkDone && c.state != chunkData {
		rest := in[used:]
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			if len(rest) > c.lineLimit() {
				return used, fmt.Errorf("%w: line %q", ErrChunk, clip(rest))
			}
			return used, nil
		}
		line := rest[:i]
		if i == 0 || line[i-1] != '\r' || i > c.lineLimit() {
			return used, fmt.Errorf("%w: line %q", ErrChunk, clip(line))
		}
		if err := c.line(line[:i-1]); err != nil {
			return used, err
		}
		used += i + 1
	}
	return used, nil
}

func (c *Chunks) lineLimit() int {
	switch c.state {
	case chunkEnd:
		return len("\r\n")
	case chunkTail:
		return maxTrailer - c.trailer
	}
	return maxChunkLine
}

// line takes a line without its line end.
func (c *Chunks) line(line []byte) error {
	switch c.state {
	case chunkEnd:
		if len(line) > 0 {
			return fmt.Errorf("%w: %q behind its data", ErrChunk, clip(line))
		}
		c.state = chunkSize
	case chunkTail:
		if len(line) == 0 {
			c.state = chunkDone
			return nil
		}
		c.trailer += len(line) + 2
		c.fields.Reset()
		return c.fields.parseLine(line)
	default:
		size, err := parseChunkSize(line)
		if err != nil {
			return err
		}
		c.state, c.left = chunkData, size
		if size == 0 {
			c.state = chunkTail
		}
	}
	return nil
}

// parseChunkSize reads the line before a chunk: a hexadecimal size, then nothing or an extension.
func parseChunkSize(line []byte) (int64, error) {
	size, digits := int64(0), 0
	for _, c := range line {
		d := HexDigit(c)
		if d == NoHexDigit {
			if digits > 0 && c == ';' && ValidValue(line) {
				return size, nil
			}
			return 0, fmt.Errorf("%w: size %q", ErrChunk, clip(line))
		}
		if digits++; digits > 15 {
			return 0, fmt.Errorf("%w: size %q", ErrChunk, clip(line))
		}
		size = size<<4 | int64(d)
	}
	if digits == 0 {
		return 0, fmt.Errorf("%w: empty size", ErrChunk)
	}
	return size, nil
}

// ChunkRoom is how many bytes FrameChunk needs in front of the data, and ChunkEnd behind it.
const (
	ChunkRoom = 10
	ChunkEnd  = 2
)

// FrameChunk makes a chunk of the n bytes of data that stand in buf at ChunkRoom, where n is at least 1 and below 2^32. buf
// must have ChunkEnd bytes behind them. The result is a part of buf.
func FrameChunk(buf []byte, n int) []byte {
	const digits = "0123456789abcdef"
	start := ChunkRoom - 2
	for size := uint32(n); size > 0; size >>= 4 {
		start--
		buf[start] = digits[size&15]
	}
	buf[ChunkRoom-2], buf[ChunkRoom-1] = '\r', '\n'
	buf[ChunkRoom+n], buf[ChunkRoom+n+1] = '\r', '\n'
	return buf[start : ChunkRoom+n+ChunkEnd]
}

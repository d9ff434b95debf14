package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
)

// A block is
//
//	magic    4 bytes   0xFF LF LF 'W'
//	version  1 byte    1
//	codec    1 byte    how the payload is coded
//	reserved 2 bytes   0
//	count    4 bytes   number of records, big endian
//	length   4 bytes   length of the payload in bytes, big endian
//	crc      4 bytes   CRC-32C (RFC 3720, appendix B.4) of the 16 bytes before and the payload, big endian
//	payload
//
// The length stands in the header, so that a block can be read without trusting what surrounds it, and the magic can be
// searched for: records are never empty and hold no line feed, so no payload has two line feeds in a row, and nothing that
// a client puts into a record can pass for the beginning of a block.
const (
	// HeaderSize is the length of a block's header in bytes.
	HeaderSize = 20

	// Magic begins every block.
	Magic = "\xff\n\nW"

	version = 1
)

// Codec says how the payload of a block is coded.
type Codec uint8

// CodecNone is plain NDJSON.
const CodecNone Codec = 0

// ErrDamaged says that bytes are not an intact block.
var ErrDamaged = errors.New("damaged block")

// The polynomial is the one that processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Block is a decoded block.
type Block struct {
	// Count is the number of records, at least 1.
	Count int
	// Payload is the records as NDJSON, each ended by a line feed.
	Payload []byte
}

// Records yields the records in order, without their line feeds. They are slices of Payload.
func (b Block) Records() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		rest := b.Payload
		for len(rest) > 0 {
			record, after, _ := bytes.Cut(rest, lineFeed)
			if !yield(record) {
				return
			}
			rest = after
		}
	}
}

var lineFeed = []byte{'\n'}

// BlockLen returns the length in bytes, header included, of the block that begins with header, which is at least
// HeaderSize long. It returns ErrDamaged when that is no header. Only Decode tells whether the block is intact.
func BlockLen(header []byte) (int64, error) {
	if len(header) < HeaderSize {
		return 0, fmt.Errorf("%w: header of %d bytes, want %d", ErrDamaged, len(header), HeaderSize)
	}
	if string(header[:4]) != Magic {
		return 0, fmt.Errorf("%w: magic is %x", ErrDamaged, header[:4])
	}
	if header[4] != version || Codec(header[5]) != CodecNone || header[6] != 0 || header[7] != 0 {
		return 0, fmt.Errorf("%w: version %d, codec %d, reserved %x: not known here", ErrDamaged, header[4], header[5], header[6:8])
	}
	return HeaderSize + int64(binary.BigEndian.Uint32(header[12:])), nil
}

// Decode reads the block that data is, no byte more and no byte less. The block's payload is a slice of data. It returns
// ErrDamaged when data is torn or changed.
func Decode(data []byte) (Block, error) {
	n, err := BlockLen(data)
	if err != nil {
		return Block{}, err
	}
	if n != int64(len(data)) {
		return Block{}, fmt.Errorf("%w: %d bytes, header says %d", ErrDamaged, len(data), n)
	}
	if got, want := checksum(data), binary.BigEndian.Uint32(data[16:]); got != want {
		return Block{}, fmt.Errorf("%w: checksum %08x, header says %08x", ErrDamaged, got, want)
	}
	b := Block{Count: int(binary.BigEndian.Uint32(data[8:])), Payload: data[HeaderSize:]}
	lines := bytes.Count(b.Payload, lineFeed)
	if b.Count == 0 || b.Count != lines || b.Payload[len(b.Payload)-1] != '\n' || b.Payload[0] == '\n' ||
		bytes.Contains(b.Payload, []byte("\n\n")) {
		return Block{}, fmt.Errorf("%w: payload is not %d lines", ErrDamaged, b.Count)
	}
	return b, nil
}

func checksum(block []byte) uint32 {
	return crc32.Update(crc32.Checksum(block[:16], castagnoli), castagnoli, block[HeaderSize:])
}

// Builder collects records into a block. The zero value is an empty builder; Reset keeps its memory for the next block.
type Builder struct {
	buf   []byte
	count int
}

// Append copies record into the block. It returns ErrInvalid, and takes nothing, when record is empty or holds a line feed.
func (b *Builder) Append(record []byte) error {
	if len(record) == 0 || bytes.IndexByte(record, '\n') >= 0 {
		return ErrInvalid
	}
	if len(b.buf) == 0 {
		b.buf = append(b.buf, emptyHeader[:]...)
	}
	b.buf = append(append(b.buf, record...), '\n')
	b.count++
	return nil
}

var emptyHeader = [HeaderSize]byte{0: Magic[0], 1: Magic[1], 2: Magic[2], 3: Magic[3], 4: version, 5: byte(CodecNone)}

// Len is the length in bytes that the block has so far, header included; 0 while it has no record.
func (b *Builder) Len() int { return len(b.buf) }

// Count is the number of records.
func (b *Builder) Count() int { return b.count }

// Cap is the number of bytes that the builder holds on to.
func (b *Builder) Cap() int { return cap(b.buf) }

// Seal completes the header and returns the encoded block, which belongs to the builder until Reset. The builder must hold
// at least one record.
func (b *Builder) Seal() []byte {
	binary.BigEndian.PutUint32(b.buf[8:], uint32(b.count))
	binary.BigEndian.PutUint32(b.buf[12:], uint32(len(b.buf)-HeaderSize))
	binary.BigEndian.PutUint32(b.buf[16:], checksum(b.buf))
	return b.buf
}

// Reset empties the builder.
func (b *Builder) Reset() { b.buf, b.count = b.buf[:0], 0 }

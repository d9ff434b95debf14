package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"math"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A block is
//
//	magic    4 bytes   0xFF LF LF 'W'
//	version  1 byte    2
//	codec    1 byte    how the payload is coded
//	reserved 2 bytes   0
//	time     8 bytes   when its first record was taken, in milliseconds since 1970, big endian
//	count    4 bytes   number of records, big endian
//	length   4 bytes   length of the payload as it is stored in bytes, big endian
//	crc      4 bytes   CRC-32C (RFC 3720, appendix B.4) of the 24 bytes before and the payload, big endian
//	payload
//
// The length stands in the header, so that a block can be read without trusting what surrounds it, and the magic can be
// searched for: records are never empty and hold no line feed, so no plain payload has two line feeds in a row, a coded one
// in which the magic occurs is stored plain, and nothing that a client puts into a record can pass for the beginning of a
// block.
const (
	// HeaderSize is the length of a block's header in bytes.
	HeaderSize = 28

	// Magic begins every block.
	Magic = "\xff\n\nW"

	version = 2

	timeAt, countAt, lengthAt, crcAt = 8, 16, 20, 24
)

// Codec says how the payload of a block is coded.
type Codec uint8

const (
	// CodecNone is plain NDJSON.
	CodecNone Codec = iota
	// CodecZstd is NDJSON in one frame of Zstandard (RFC 8878) that tells its content's size.
	CodecZstd
)

var codecNames = [...]string{"none", "zstd"}

// String returns the codec's name, as the configuration has it.
func (c Codec) String() string { return codecNames[c] }

// ErrDamaged says that bytes are not an intact block.
var ErrDamaged = errors.New("damaged block")

// The polynomial is the one that processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Block is a decoded block.
type Block struct {
	// Time is when the first record was taken, to the millisecond.
	Time time.Time
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
	if header[4] != version || int(header[5]) >= len(codecNames) || header[6] != 0 || header[7] != 0 {
		return 0, fmt.Errorf("%w: version %d, codec %d, reserved %x: not known here", ErrDamaged, header[4], header[5], header[6:8])
	}
	return HeaderSize + int64(binary.BigEndian.Uint32(header[lengthAt:])), nil
}

// A Decoder reads blocks. The zero value is ready; it keeps its memory from block to block.
type Decoder struct {
	zstd *zstd.Decoder
	buf  []byte
}

// Decode reads the block that data is, no byte more and no byte less. The block's payload is a slice of data, or of the
// decoder's memory, and then good until the next call. It returns ErrDamaged when data is torn or changed.
func (d *Decoder) Decode(data []byte) (Block, error) {
	n, err := BlockLen(data)
	if err != nil {
		return Block{}, err
	}
	if n != int64(len(data)) {
		return Block{}, fmt.Errorf("%w: %d bytes, header says %d", ErrDamaged, len(data), n)
	}
	if got, want := checksum(data), binary.BigEndian.Uint32(data[crcAt:]); got != want {
		return Block{}, fmt.Errorf("%w: checksum %08x, header says %08x", ErrDamaged, got, want)
	}
	b := Block{
		Time:  time.UnixMilli(int64(binary.BigEndian.Uint64(data[timeAt:]))),
		Count: int(binary.BigEndian.Uint32(data[countAt:])), Payload: data[HeaderSize:],
	}
	if Codec(data[5]) == CodecZstd {
		if b.Payload, err = d.expand(b.Payload); err != nil {
			return Block{}, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	lines := bytes.Count(b.Payload, lineFeed)
	if b.Count == 0 || b.Count != lines || b.Payload[len(b.Payload)-1] != '\n' || b.Payload[0] == '\n' ||
		bytes.Contains(b.Payload, []byte("\n\n")) {
		return Block{}, fmt.Errorf("%w: payload is not %d lines", ErrDamaged, b.Count)
	}
	return b, nil
}

// expand undoes CodecZstd.
func (d *Decoder) expand(coded []byte) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(coded); err != nil {
		return nil, err
	}
	if !h.HasFCS || h.FrameContentSize > math.MaxInt32 {
		return nil, errors.New("the size of the content is missing or out of bounds")
	}
	if d.zstd == nil {
		var err error
		// A decoder without a stream has no goroutines, and needs no Close.
		if d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(math.MaxInt32)); err != nil {
			return nil, err
		}
	}
	out, err := d.zstd.DecodeAll(coded, d.buf[:0])
	if err != nil {
		return nil, err
	}
	d.buf = out
	return out, nil
}

// Shrink gives memory back that is more than most bytes.
func (d *Decoder) Shrink(most int) {
	if cap(d.buf) > most {
		d.buf = nil
	}
}

func checksum(block []byte) uint32 {
	return crc32.Update(crc32.Checksum(block[:crcAt], castagnoli), castagnoli, block[HeaderSize:])
}

// Builder collects records into a block. The zero value is an empty builder; Reset keeps its memory for the next block.
type Builder struct {
	// Time is when the first record was taken. Whoever appends it sets the time.
	Time time.Time

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
	binary.BigEndian.PutUint64(b.buf[timeAt:], uint64(b.Time.UnixMilli()))
	binary.BigEndian.PutUint32(b.buf[countAt:], uint32(b.count))
	return finish(b.buf)
}

// finish writes what depends on the payload.
func finish(block []byte) []byte {
	binary.BigEndian.PutUint32(block[lengthAt:], uint32(len(block)-HeaderSize))
	binary.BigEndian.PutUint32(block[crcAt:], checksum(block))
	return block
}

// Reset empties the builder.
func (b *Builder) Reset() { b.buf, b.count, b.Time = b.buf[:0], 0, time.Time{} }

// A Compressor codes blocks with CodecZstd. The zero value is ready; it keeps its memory from block to block.
type Compressor struct {
	zstd *zstd.Encoder
	buf  []byte
}

// Compress returns block, which Seal returned, with its payload coded. The result is the compressor's until the next call. A
// block that does not become shorter, or in which the magic would occur, comes back as it is.
func (c *Compressor) Compress(block []byte) ([]byte, error) {
	if c.zstd == nil {
		var err error
		// The fastest level: the disk is saved two thirds of the bytes of JSON at some 2 ms of CPU a megabyte.
		c.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
		if err != nil {
			return nil, fmt.Errorf("compress a block: %w", err)
		}
	}
	c.buf = append(c.buf[:0], block[:HeaderSize]...)
	c.buf = c.zstd.EncodeAll(block[HeaderSize:], c.buf)
	if len(c.buf) >= len(block) || bytes.Contains(c.buf[HeaderSize:], []byte(Magic)) {
		return block, nil
	}
	c.buf[5] = byte(CodecZstd)
	return finish(c.buf), nil
}

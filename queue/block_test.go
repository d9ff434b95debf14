package queue

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func encode(t testing.TB, records ...string) []byte {
	t.Helper()
	var b Builder
	for _, r := range records {
		if err := b.Append([]byte(r)); err != nil {
			t.Fatalf("Append(%q): %v", r, err)
		}
	}
	return bytes.Clone(b.Seal())
}

func compress(t testing.TB, block []byte) []byte {
	t.Helper()
	coded, err := new(Compressor).Compress(block)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(coded)
}

func recordsOf(b Block) []string {
	var records []string
	for r := range b.Records() {
		records = append(records, string(r))
	}
	return records
}

// genRecord draws what Append takes: any bytes, not only JSON, with the bytes of the magic more often than chance has them.
func genRecord() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		r := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte{0xff, 'W', 1, 0})), 1, 40).Draw(t, "record")
		return strings.ReplaceAll(string(r), "\n", "W")
	})
}

func TestBlockRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		records := rapid.SliceOfN(genRecord(), 1, 20).Draw(rt, "records")
		b, err := new(Decoder).Decode(encode(t, records...))
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(records, recordsOf(b)); diff != "" || b.Count != len(records) {
			rt.Fatalf("count %d, want %d; records (-want +got):\n%s", b.Count, len(records), diff)
		}
	})
}

func TestCompressedBlockRoundTrip(t *testing.T) {
	var c Compressor
	var d Decoder
	rapid.Check(t, func(rt *rapid.T) {
		var b Builder
		b.Time = time.UnixMilli(rapid.Int64Range(0, 1<<42).Draw(rt, "time"))
		records := rapid.SliceOfN(genRecord(), 1, 20).Draw(rt, "records")
		for range rapid.IntRange(0, 3).Draw(rt, "doublings") {
			records = append(records, records...)
		}
		for _, r := range records {
			if err := b.Append([]byte(r)); err != nil {
				rt.Fatal(err)
			}
		}
		coded, err := c.Compress(b.Seal())
		if err != nil {
			rt.Fatal(err)
		}
		got, err := d.Decode(coded)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(records, recordsOf(got)); diff != "" || got.Count != len(records) || !got.Time.Equal(b.Time) {
			rt.Fatalf("count %d of %d, time %s of %s; records (-want +got):\n%s", got.Count, len(records), got.Time, b.Time, diff)
		}
		if i := bytes.LastIndex(coded, []byte(Magic)); i != 0 {
			rt.Fatalf("magic at %d of %q", i, coded)
		}
	})
}

func TestCompressionMakesBlocksShorterOrLeavesThem(t *testing.T) {
	long := encode(t, strings.Repeat(`{"a":1}`, 1000))
	if coded := compress(t, long); len(coded) > len(long)/20 {
		t.Errorf("%d bytes of one word became %d", len(long), len(coded))
	}
	short := encode(t, "x")
	if coded := compress(t, short); !bytes.Equal(coded, short) {
		t.Errorf("%q became %q", short, coded)
	}
}

// Literals of a coded payload stand side by side although something stood between them, so a client could bring the magic
// about.
func TestCompressedBlockWithTheMagicStaysPlain(t *testing.T) {
	var c Compressor
	r := rand.New(rand.NewPCG(1, 2)) // without a pattern, so that literals are stored as they are
	noise := make([]byte, 3000)
	for i := range noise {
		noise[i] = byte(11 + r.IntN(245))
	}
	phrase, noise := noise[:2000], noise[2000:]
	payload := slices.Concat(phrase, noise[:100], []byte("\xff\n"), phrase, []byte("\nW"), noise[100:], []byte("\n"))
	b := Builder{buf: slices.Concat(emptyHeader[:], payload), count: bytes.Count(payload, lineFeed)}
	plain := bytes.Clone(b.Seal())
	coded, err := c.Compress(plain)
	if err != nil {
		t.Fatal(err)
	}
	if i := bytes.LastIndex(coded, []byte(Magic)); i != 0 {
		t.Errorf("magic at %d", i)
	}
	if got, err := new(Decoder).Decode(coded); err != nil || !bytes.Equal(got.Payload, payload) {
		t.Errorf("payload differs, %v", err)
	}
}

// A reader that searches for the next block after damage must not find one inside a record.
func TestNoRecordLooksLikeABlock(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		data := encode(t, rapid.SliceOfN(genRecord(), 1, 20).Draw(rt, "records")...)
		if i := bytes.LastIndex(data, []byte(Magic)); i != 0 {
			rt.Fatalf("magic at %d of %q", i, data)
		}
	})
}

func TestDecodeFindsEveryChangedBit(t *testing.T) {
	good := encode(t, `{"a":1}`, `{"b":2}`)
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if _, err := new(Decoder).Decode(bad); !errors.Is(err, ErrDamaged) {
				t.Errorf("bit %d of byte %d changed: %v", bit, i, err)
			}
		}
	}
}

func TestDecodeFindsEveryCut(t *testing.T) {
	good := encode(t, `{"a":1}`, `{"b":2}`)
	for n := range len(good) {
		if _, err := new(Decoder).Decode(good[:n]); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := new(Decoder).Decode(append(bytes.Clone(good), 0)); !errors.Is(err, ErrDamaged) {
		t.Errorf("one byte more: %v", err)
	}
}

// The checksum is right in these: they come from a faulty writer, not from a faulty disk.
func TestDecodeRefusesWhatNoBuilderMakes(t *testing.T) {
	f := func(name string, b Builder) {
		t.Helper()
		if _, err := new(Decoder).Decode(b.Seal()); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	raw := func(payload string, count int) Builder {
		return Builder{buf: slices.Concat(emptyHeader[:], []byte(payload)), count: count}
	}
	f("no record", raw("", 0))
	f("count too high", raw("a\n", 2))
	f("count too low", raw("a\nb\n", 1))
	f("no line feed at the end", raw("a\nb", 1))
	f("empty record", raw("a\n\nb\n", 3))
	f("empty first record", raw("\na\n", 2))
	newer := raw("a\n", 1)
	newer.buf[4] = version + 1
	f("newer version", newer)
	coded := raw("a\n", 1)
	coded.buf[5] = byte(len(codecNames))
	f("unknown codec", coded)
	notCoded := raw("a\n", 1)
	notCoded.buf[5] = byte(CodecZstd)
	f("payload that is not coded", notCoded)
}

func TestAppendRefusesWhatIsNotOneLine(t *testing.T) {
	f := func(record string) {
		t.Helper()
		var b Builder
		if err := b.Append([]byte(record)); !errors.Is(err, ErrInvalid) {
			t.Errorf("Append(%q): %v", record, err)
		}
		if b.Count() != 0 || b.Len() != 0 {
			t.Errorf("Append(%q) left %d records, %d bytes", record, b.Count(), b.Len())
		}
	}
	f("")
	f("\n")
	f("a\n")
	f("a\nb")
}

func TestBuilderHoldsNothingOfTheBlockBefore(t *testing.T) {
	var b Builder
	for _, r := range []string{"a long record of the first block", "another"} {
		if err := b.Append([]byte(r)); err != nil {
			t.Fatal(err)
		}
	}
	b.Seal()
	b.Reset()
	if err := b.Append([]byte("x")); err != nil {
		t.Fatal(err)
	}
	got, err := new(Decoder).Decode(b.Seal())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"x"}, recordsOf(got)); diff != "" {
		t.Error(diff)
	}
}

func TestAppendAllocatesNothingWhenWarm(t *testing.T) {
	var b Builder
	record := []byte(strings.Repeat("r", 500))
	fill := func() {
		for range 100 {
			if err := b.Append(record); err != nil {
				t.Fatal(err)
			}
		}
		b.Seal()
		b.Reset()
	}
	fill()
	if n := testing.AllocsPerRun(10, fill); n != 0 {
		t.Errorf("%v allocations a block", n)
	}
}

// FuzzDecode checks that whatever decodes is what a Builder makes of the same records, byte for byte.
func FuzzDecode(f *testing.F) {
	f.Add(encode(f, `{"a":1}`))
	f.Add(encode(f, `{"a":1}`, `{"b":2}`)[:30])
	f.Add([]byte(Magic))
	f.Add(compress(f, encode(f, strings.Repeat(`{"a":1}`, 20))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := new(Decoder).Decode(data)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("error is not ErrDamaged: %v", err)
			}
			return
		}
		again := Builder{Time: b.Time}
		for r := range b.Records() {
			if err := again.Append(r); err != nil {
				t.Fatalf("decoded to the record %q: %v", r, err)
			}
		}
		if data[5] == byte(CodecNone) && !bytes.Equal(again.Seal(), data) {
			t.Fatalf("decoded %q, encodes to %q", data, again.Seal())
		}
	})
}

// FuzzBlockOfAnything checks that bytes with a right header and checksum decode only if they are lines.
func FuzzBlockOfAnything(f *testing.F) {
	f.Add([]byte("a\nb\n"), 2)
	f.Add([]byte("\n\n"), 2)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, payload []byte, count int) {
		raw := Builder{buf: slices.Concat(emptyHeader[:], []byte(payload)), count: count}
		b, err := new(Decoder).Decode(bytes.Clone(raw.Seal()))
		if err != nil {
			return
		}
		var again Builder
		for r := range b.Records() {
			if err := again.Append(r); err != nil {
				t.Fatalf("payload %q decoded to the record %q: %v", payload, r, err)
			}
		}
		if again.Count() != b.Count || !bytes.Equal(again.Seal()[HeaderSize:], payload) {
			t.Fatalf("payload %q, count %d decoded to %d records", payload, count, again.Count())
		}
	})
}

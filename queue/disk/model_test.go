package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"weir/queue"
)

// TestQueueAgainstModel does at random what can happen to a queue and compares it with a list of blocks.
func TestQueueAgainstModel(t *testing.T) {
	// A memory file system where there is one: the test syncs thousands of times, and nothing in it depends on that.
	base := "/dev/shm"
	if _, err := os.Stat(base); err != nil {
		base = t.TempDir()
	}
	rapid.Check(t, func(rt *rapid.T) {
		root, err := os.MkdirTemp(base, "queue")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(root)
		m := &model{
			rt:   rt,
			root: root,
			o:    Options{BlockAge: never, MaxBytes: 1 << 20, BlockSize: 4096, MaxBytesPerFile: rapid.Int64Range(60, 400).Draw(rt, "file size")},
		}
		m.reopen()
		defer func() { m.store.close() }()
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				var b [][]byte
				for range rapid.IntRange(1, 5).Draw(rt, "records") {
					r := bytes.ReplaceAll(rapid.SliceOfN(rapid.Byte(), 1, 30).Draw(rt, "record"), []byte("\n"), []byte("_"))
					if _, err := m.store.put(r); err != nil {
						rt.Fatal(err)
					}
					b = append(b, r)
				}
				m.flush()
				m.blocks = append(m.blocks, b)
			},
			"peek":    func(*rapid.T) { m.peek() },
			"advance": func(*rapid.T) { m.advance() },
			"close": func(rt *rapid.T) {
				if err := m.store.close(); err != nil {
					rt.Fatal(err)
				}
				m.reopen()
			},
			"crash":   func(*rapid.T) { m.crash() },
			"corrupt": func(rt *rapid.T) { m.corrupt(rt) },
			"tear":    func(rt *rapid.T) { m.tear(rt) },
			"": func(rt *rapid.T) {
				if depth := m.store.snapshot().Depth; depth != int64(len(m.blocks)) {
					rt.Fatalf("depth %d, want %d", depth, len(m.blocks))
				}
			},
		})
		for len(m.blocks) > 0 {
			m.peek()
			m.advance()
		}
		m.peek()
		if err := m.store.close(); err != nil {
			rt.Fatal(err)
		}
		if left, err := filepath.Glob(filepath.Join(m.dir(), "*dat*")); err != nil || len(left) > 0 {
			rt.Fatalf("left after the last block: %v, %v", left, err)
		}
	})
}

type model struct {
	rt     *rapid.T
	root   string
	copies int
	o      Options
	store  *store
	blocks [][][]byte // not delivered
	inHand bool
}

func (m *model) dir() string { return filepath.Join(m.root, string(rune('a'+m.copies%26)), "q") }

func (m *model) reopen() {
	var err error
	m.store, err = openStore(m.dir(), "q", m.o, new(signal), new(atomic.Uint64), silent)
	if err != nil {
		m.rt.Fatal(err)
	}
	m.inHand = false
}

func (m *model) flush() {
	if err := m.store.flush(m.rt.Context(), nil, m.store.taken()); err != nil {
		m.rt.Fatal(err)
	}
}

func (m *model) peek() {
	b, ok, err := m.store.readNext()
	if err != nil {
		m.rt.Fatal(err)
	}
	if ok != (len(m.blocks) > 0) {
		m.rt.Fatalf("a block is there: %v, want %d", ok, len(m.blocks))
	}
	m.inHand = ok
	if !ok {
		return
	}
	got := slices.Collect(b.Records())
	if !slices.EqualFunc(got, m.blocks[0], bytes.Equal) {
		m.rt.Fatalf("peeked %q, want %q", got, m.blocks[0])
	}
}

func (m *model) advance() {
	err := m.store.advance()
	if !m.inHand {
		if !errors.Is(err, queue.ErrNotPeeked) {
			m.rt.Fatal(err)
		}
		return
	}
	if err != nil {
		m.rt.Fatal(err)
	}
	m.blocks = m.blocks[1:]
	m.inHand = false
}

// crash goes on with a copy of the files as a kill would leave them: nothing is closed.
func (m *model) crash() {
	old := m.dir()
	m.copies++
	if err := errors.Join(os.RemoveAll(m.dir()), os.MkdirAll(m.dir(), 0o750)); err != nil {
		m.rt.Fatal(err)
	}
	entries, err := os.ReadDir(old)
	if err != nil {
		m.rt.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(old, e.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(m.dir(), e.Name()), data, 0o600)
		}
		if err != nil {
			m.rt.Fatal(err)
		}
	}
	if err := m.store.close(); err != nil {
		m.rt.Fatal(err)
	}
	m.reopen()
}

// corrupt closes the queue, changes one byte of a block that was not delivered and opens it again. The length field of
// go-diskqueue is spared: nothing depends on it.
func (m *model) corrupt(rt *rapid.T) {
	if len(m.blocks) == 0 {
		rt.Skip("nothing to corrupt")
	}
	if err := m.store.close(); err != nil {
		rt.Fatal(err)
	}
	victim := rapid.IntRange(0, len(m.blocks)-1).Draw(rt, "block")
	h, err := readHead(m.dir())
	if err != nil {
		rt.Fatal(err)
	}
	keys, _, err := listData(m.dir())
	if err != nil {
		rt.Fatal(err)
	}
	n := 0
	for _, k := range keys {
		path := filepath.Join(m.dir(), k.name())
		data, err := os.ReadFile(path)
		if err != nil {
			rt.Fatal(err)
		}
		sc := scanner{r: bytes.NewReader(data), size: int64(len(data))}
		off := int64(0)
		if k == h.key {
			off = h.off
		}
		for off < sc.size {
			off, err = sc.find(off)
			if err != nil {
				rt.Fatal(err)
			}
			if off == sc.size {
				break
			}
			_, end, err := sc.at(off)
			if err != nil {
				rt.Fatal(err)
			}
			if n == victim {
				i := rapid.Int64Range(off+prefixSize, end-1).Draw(rt, "byte")
				data[i] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits"))
				if err := os.WriteFile(path, data, 0o600); err != nil {
					rt.Fatal(err)
				}
				m.blocks = slices.Delete(m.blocks, victim, victim+1)
				m.reopen()
				return
			}
			n++
			off = end
		}
	}
	rt.Fatalf("%d blocks in the files, %d in the model", n, len(m.blocks))
}

// tear leaves the beginning of a block at the end of the newest file, as a crash in the middle of a write does.
func (m *model) tear(rt *rapid.T) {
	if err := m.store.close(); err != nil {
		rt.Fatal(err)
	}
	keys, _, err := listData(m.dir())
	if err != nil {
		rt.Fatal(err)
	}
	k := fileKey{run: m.store.lastRun + 1}
	if len(keys) > 0 {
		k = keys[len(keys)-1]
	}
	var b queue.Builder
	if err := b.Append([]byte("never acknowledged")); err != nil {
		rt.Fatal(err)
	}
	torn := append([]byte{0, 0, 0, byte(b.Len())}, b.Seal()...)
	f, err := os.OpenFile(filepath.Join(m.dir(), k.name()), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		rt.Fatal(err)
	}
	_, err = f.Write(torn[:rapid.IntRange(1, len(torn)-1).Draw(rt, "length")])
	if err := errors.Join(err, f.Close()); err != nil {
		rt.Fatal(err)
	}
	m.reopen()
}

// find reads in windows; a block must be found wherever it lies in relation to them.
func TestBlockIsFoundBehindAnyAmountOfDamage(t *testing.T) {
	var b queue.Builder
	if err := b.Append([]byte("record")); err != nil {
		t.Fatal(err)
	}
	block := append([]byte{0, 0, 0, 27}, b.Seal()...)
	for damage := 64<<10 - 50; damage < 64<<10+50; damage++ {
		data := append(make([]byte, damage), block...)
		sc := scanner{r: bytes.NewReader(data), size: int64(len(data))}
		at, err := sc.find(1)
		if err != nil || at != int64(damage) {
			t.Errorf("block at %d, found at %d, %v", damage, at, err)
		}
	}
}

// FuzzScanner puts an intact block between arbitrary bytes: it must be found, and nothing may be read that is no block.
func FuzzScanner(f *testing.F) {
	var b queue.Builder
	if err := b.Append([]byte(`{"a":1}`)); err != nil {
		f.Fatal(err)
	}
	block := append([]byte{0, 0, 0, 28}, b.Seal()...)
	f.Add([]byte{}, []byte{})
	f.Add([]byte("garbage"), block[:9])
	f.Add(block, block)
	f.Add([]byte(queue.Magic+"\x01\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff"), []byte(queue.Magic))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		data := slices.Concat(before, block, after)
		sc := scanner{r: bytes.NewReader(data), size: int64(len(data))}
		want := int64(len(before))
		for off := int64(0); ; {
			at, err := sc.find(off)
			if err != nil {
				t.Fatal(err)
			}
			if at < off || at > want {
				t.Fatalf("the block at %d of %q was not found from %d on: %d", want, data, off, at)
			}
			got, end, err := sc.at(at)
			if err != nil || end <= at || got.Count == 0 {
				t.Fatalf("found %+v to %d at %d of %q: %v", got, end, at, data, err)
			}
			if at == want {
				return
			}
			off = at + 1
		}
	})
}

package disk

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// head is the reader's place: blocks before it were delivered. The file is magic, run, file number, offset, how it was left and
// a CRC-32C, in one sector, so that a crash leaves the old or the new one or, told by the checksum, none.
type head struct {
	key   fileKey
	off   int64
	clean bool // the queue was closed
	left  int  // data files from key on, if it was
}

const (
	headName  = "head"
	headMagic = "WQH1"
	headSize  = 40
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readHead returns the zero head, which is before every block, if there is no valid one.
func readHead(dir string) (head, error) {
	f, _, err := openRegular(filepath.Join(dir, headName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFile) {
		return head{}, nil
	}
	if err != nil {
		return head{}, err
	}
	defer f.Close()
	var b [headSize]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return head{}, nil
		}
		return head{}, err
	}
	if string(b[:4]) != headMagic || crc32.Checksum(b[:36], castagnoli) != binary.BigEndian.Uint32(b[36:]) {
		return head{}, nil
	}
	left := binary.BigEndian.Uint64(b[28:])
	return head{
		key:   fileKey{int64(binary.BigEndian.Uint64(b[4:])), int64(binary.BigEndian.Uint64(b[12:]))},
		off:   int64(binary.BigEndian.Uint64(b[20:])),
		clean: left > 0,
		left:  max(0, int(left)-1),
	}, nil
}

// write puts the head into the open file f. It does not sync: an older head only means that blocks are delivered again.
func (h head) write(f *os.File) error {
	var b [headSize]byte
	copy(b[:], headMagic)
	binary.BigEndian.PutUint64(b[4:], uint64(h.key.run))
	binary.BigEndian.PutUint64(b[12:], uint64(h.key.num))
	binary.BigEndian.PutUint64(b[20:], uint64(h.off))
	if h.clean {
		binary.BigEndian.PutUint64(b[28:], uint64(h.left)+1)
	}
	binary.BigEndian.PutUint32(b[36:], crc32.Checksum(b[:36], castagnoli))
	_, err := f.WriteAt(b[:], 0)
	return err
}

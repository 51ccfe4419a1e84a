package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// The format of a file; see the package's documentation.
const (
	MaxHead = 1 << 20 // bytes of the head of a part

	magic       = "tuttips\n"
	fileHeader  = 28
	chunkHeader = 24
	chunkSize   = 4 << 20 // of a full chunk of data, with its header
	endSize     = 12

	kindHead = 1
	kindData = 2
	kindEnd  = 3
)

// castagnoli is the table of CRC-32C, for which processors have instructions.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A FileWriter writes the file of one server, and holds one chunk of it in memory. After an error the
// file is gone, and all calls return the same error. Only one goroutine may use a FileWriter. Close or
// Abort must end it.
type FileWriter struct {
	f      *os.File
	buf    []byte // the chunk that is filled, with room for its header
	chunks uint64 // that are written
	bytes  int64  // that are written
	parts  uint64 // that have begun
	sum    uint32 // of the headers that are written
	err    error
}

// errEnded is the error of a FileWriter after Close and Abort.
var errEnded = errors.New("snapshot: this file has been closed")

// Create creates the file of a server in the directory of a snapshot, which Begin has created on the
// lead. It is an error if the file exists.
func Create(snapshotDir string, rank int) (*FileWriter, error) {
	n, ok := number(filepath.Base(snapshotDir))
	if !ok {
		return nil, fmt.Errorf("%s: want the directory of a snapshot", snapshotDir)
	}
	f, err := os.OpenFile(filepath.Join(snapshotDir, fmt.Sprintf("server-%d", rank)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, explain(err)
	}
	w := &FileWriter{f: f, buf: make([]byte, 0, chunkSize)}
	head := append(w.buf, magic...)
	head = binary.LittleEndian.AppendUint32(head, format)
	head = binary.LittleEndian.AppendUint32(head, uint32(rank))
	head = binary.LittleEndian.AppendUint64(head, n)
	w.sum = crc32.Checksum(head, castagnoli)
	if err := w.write(binary.LittleEndian.AppendUint32(head, w.sum)); err != nil {
		return nil, err
	}
	w.reset()
	return w, nil
}

// Part begins a part. The head, of at most MaxHead bytes, is what package ps needs to find the part
// and to restore it.
func (w *FileWriter) Part(head []byte) error {
	if len(head) > MaxHead && w.err == nil {
		return w.fail(fmt.Errorf("%s: got a head of %d bytes, want at most %d", w.f.Name(), len(head), MaxHead))
	}
	if err := w.flush(); err != nil {
		return err
	}
	w.buf = append(w.buf, head...)
	w.parts++
	return w.chunk(kindHead)
}

// Write adds bytes to the part. The FileWriter keeps no reference to p.
func (w *FileWriter) Write(p []byte) (int, error) {
	if w.parts == 0 && w.err == nil {
		return 0, w.fail(fmt.Errorf("%s: got data, want the head of a part first", w.f.Name()))
	}
	n := 0
	for w.err == nil && n < len(p) {
		free := w.buf[len(w.buf):chunkSize]
		copied := copy(free, p[n:])
		w.buf = w.buf[:len(w.buf)+copied]
		n += copied
		if copied == len(free) {
			w.chunk(kindData)
		}
	}
	return n, w.err
}

// Close ends the file. It returns when the file and its name are on the disk.
func (w *FileWriter) Close() (File, error) {
	if err := w.flush(); err != nil {
		return File{}, err
	}
	w.buf = binary.LittleEndian.AppendUint64(w.buf, w.parts)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, w.sum)
	file := File{Name: filepath.Base(w.f.Name()), Parts: w.parts, Sum: w.sum}
	if err := w.chunk(kindEnd); err != nil {
		return File{}, err
	}
	file.Bytes = w.bytes
	err := w.f.Sync()
	if err == nil {
		err = w.f.Close()
	}
	if err == nil {
		err = syncDir(filepath.Dir(w.f.Name()))
	}
	if err != nil {
		return File{}, w.fail(explain(err))
	}
	w.err = errEnded
	return file, nil
}

// Abort removes the file. After Close or an error it does nothing.
func (w *FileWriter) Abort() {
	if w.err == nil {
		w.fail(errEnded)
	}
}

// flush writes the data that is left over as a chunk.
func (w *FileWriter) flush() error {
	if w.err == nil && len(w.buf) > chunkHeader {
		return w.chunk(kindData)
	}
	return w.err
}

// chunk writes the content of the buffer as a chunk.
func (w *FileWriter) chunk(kind uint32) error {
	content, h := w.buf[chunkHeader:], w.buf[:chunkHeader]
	binary.LittleEndian.PutUint32(h, kind)
	binary.LittleEndian.PutUint32(h[4:], uint32(len(content)))
	binary.LittleEndian.PutUint64(h[8:], w.chunks)
	binary.LittleEndian.PutUint32(h[16:], crc32.Checksum(content, castagnoli))
	binary.LittleEndian.PutUint32(h[20:], crc32.Checksum(h[:20], castagnoli))
	w.sum = crc32.Update(w.sum, castagnoli, h[:20]) // a CRC over data and its CRC is a constant
	w.chunks++
	defer w.reset()
	return w.write(w.buf)
}

// reset begins a chunk.
func (w *FileWriter) reset() { w.buf = w.buf[:chunkHeader] }

func (w *FileWriter) write(b []byte) error {
	n, err := w.f.Write(b)
	w.bytes += int64(n)
	if err != nil {
		return w.fail(fmt.Errorf("after %d bytes: %w", w.bytes, explain(err)))
	}
	return nil
}

// fail closes and removes the file, so that its space is free again.
func (w *FileWriter) fail(err error) error {
	w.err = err
	w.f.Close()
	os.Remove(w.f.Name())
	return err
}

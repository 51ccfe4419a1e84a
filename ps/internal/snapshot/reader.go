package snapshot

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/tutti-go/tutti/internal/wire"
)

// A FileReader reads the file of one server, and holds one chunk of it in memory. It checks a chunk
// before it returns bytes of the chunk. After an error, all calls return the same error. Only one
// goroutine may use a FileReader.
type FileReader struct {
	f      source
	path   string
	file   File   // as the manifest describes it
	at     int64  // the offset of the next chunk
	next   header // of the chunk at offset at; of kind 0 before peek has read it
	chunks uint64 // whose headers have been read
	parts  uint64 // that have begun
	sum    uint32 // of the headers that have been read
	buf    []byte // for the content of a chunk
	data   []byte // the bytes of the part in buf that Read has not returned
	err    error
}

// A source is a file.
type source interface {
	io.ReaderAt
	io.Closer
}

// A header is the header of a chunk.
type header struct {
	kind uint32
	size int
	sum  uint32 // of the content
}

// Open opens the file with the given index in Files.
func (s *Snapshot) Open(file int) (*FileReader, error) {
	path := filepath.Join(s.Dir, s.Files[file].Name)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := newReader(f, path, s.Files[file], s.Number)
	if err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// newReader reads the header of a file of the snapshot with the given number.
func newReader(f source, path string, file File, number uint64) (*FileReader, error) {
	r := &FileReader{f: f, path: path, file: file}
	var b [fileHeader]byte
	if err := r.read(b[:], 0); err != nil {
		return nil, err
	}
	m := wire.NewReader(b[:])
	if got := m.Bytes(len(magic)); string(got) != magic {
		return nil, r.damaged("got the first bytes %q, want %q", got, magic)
	}
	if got := m.Uint32(); got != format {
		return nil, fmt.Errorf("%s: %w", path, otherFormat(int(got)))
	}
	rank, got := m.Uint32(), m.Uint64()
	r.sum = crc32.Checksum(b[:fileHeader-4], castagnoli)
	if want := m.Uint32(); r.sum != want {
		return nil, r.damaged("got the checksum %08x, want %08x", r.sum, want)
	}
	if got != number {
		return nil, r.damaged("got a file that server %d wrote for snapshot %d, want one for snapshot %d", rank, got, number)
	}
	r.at = fileHeader
	return r, nil
}

// Next returns the head of the next part, and io.EOF after the last part. It skips what Read has not
// returned of the part before, without reading it. The next call of any method overwrites the head.
func (r *FileReader) Next() (head []byte, err error) {
	r.data = nil
	r.peek()
	for r.err == nil && r.next.kind == kindData && r.parts > 0 {
		r.pass()
		r.peek()
	}
	switch {
	case r.err != nil:
		return nil, r.err
	case r.next.kind == kindHead:
		r.parts++
		return r.content()
	case r.next.kind == kindEnd:
		return nil, r.end()
	}
	return nil, r.damaged("got data, want the head of a part")
}

// Read reads bytes of the part. At the end of the part it returns io.EOF.
func (r *FileReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.fill(); err != nil {
		return 0, err
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// Close closes the file.
func (r *FileReader) Close() error {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %w", r.path, os.ErrClosed)
	}
	return r.f.Close()
}

// fill reads a chunk of the part if there is no data. It returns io.EOF if the part has no more.
func (r *FileReader) fill() error {
	if len(r.data) > 0 {
		return nil
	}
	r.peek()
	if r.err == nil && (r.next.kind != kindData || r.parts == 0) {
		return io.EOF
	}
	if r.err == nil {
		r.data, _ = r.content()
	}
	return r.err
}

// peek reads the header of the next chunk, unless that has been done.
func (r *FileReader) peek() {
	if r.err != nil || r.next.kind != 0 {
		return
	}
	var b [chunkHeader]byte
	if r.read(b[:], r.at) != nil {
		return
	}
	m := wire.NewReader(b[:])
	kind, size, index, sum := m.Uint32(), m.Uint32(), m.Uint64(), m.Uint32()
	switch got, want := crc32.Checksum(b[:chunkHeader-4], castagnoli), m.Uint32(); {
	case got != want:
		r.damaged("got a header with the checksum %08x, want %08x", got, want)
	case index != r.chunks:
		r.damaged("got chunk %d", index)
	case !valid(kind, size):
		r.damaged("got the kind %d with %d bytes", kind, size)
	default:
		if kind != kindEnd {
			r.sum = crc32.Update(r.sum, castagnoli, b[:chunkHeader-4])
		}
		r.next = header{kind, int(size), sum}
	}
}

// valid reports whether a chunk of this kind may have this size.
func valid(kind, size uint32) bool {
	switch kind {
	case kindHead:
		return size <= MaxHead
	case kindData:
		return 0 < size && size <= chunkSize-chunkHeader
	}
	return kind == kindEnd && size == endSize
}

// pass passes the chunk at offset at.
func (r *FileReader) pass() {
	r.at += chunkHeader + int64(r.next.size)
	r.chunks++
	r.next = header{}
}

// content reads the content of the chunk whose header peek has read.
func (r *FileReader) content() ([]byte, error) {
	if cap(r.buf) < r.next.size {
		r.buf = make([]byte, r.next.size)
	}
	b := r.buf[:r.next.size]
	if err := r.read(b, r.at+chunkHeader); err != nil {
		return nil, err
	}
	if got, want := crc32.Checksum(b, castagnoli), r.next.sum; got != want {
		return nil, r.damaged("got the checksum %08x, want %08x", got, want)
	}
	r.pass()
	return b, nil
}

// end checks the last chunk, and returns io.EOF.
func (r *FileReader) end() error {
	b, err := r.content()
	if err != nil {
		return err
	}
	m := wire.NewReader(b)
	got, want := File{r.file.Name, r.at, r.parts, r.sum}, File{r.file.Name, r.at, m.Uint64(), m.Uint32()}
	if got != want {
		return r.damaged("got %d parts with the checksum %08x, want %d with %08x", got.Parts, got.Sum, want.Parts, want.Sum)
	}
	if got != r.file {
		return r.damaged("got a file %+v, want %+v as the manifest states", got, r.file)
	}
	r.err = io.EOF
	return r.err
}

// read reads bytes of the file within the size that the manifest states.
func (r *FileReader) read(b []byte, at int64) error {
	if at+int64(len(b)) > r.file.Bytes {
		return r.damaged("got the end of the file at %d, want %d bytes at offset %d", r.file.Bytes, len(b), at)
	}
	if _, err := r.f.ReadAt(b, at); errors.Is(err, io.EOF) {
		return r.damaged("got a shorter file than the manifest states")
	} else if err != nil {
		r.err = err
	}
	return r.err
}

// damaged fails the FileReader.
func (r *FileReader) damaged(format string, args ...any) error {
	r.err = fmt.Errorf("%s: chunk %d at offset %d: %w%s", r.path, r.chunks, r.at, fmt.Errorf(format, args...), remedy)
	return r.err
}

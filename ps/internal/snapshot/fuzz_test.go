package snapshot

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// seal sets all checksums of a file, and the indices of its chunks, as far as its chunks can be
// told apart.
func seal(b []byte) []byte {
	b = slices.Clone(b)
	if len(b) < fileHeader {
		return b
	}
	sum := crc32.Checksum(b[:fileHeader-4], castagnoli)
	binary.LittleEndian.PutUint32(b[fileHeader-4:], sum)
	index := uint64(0)
	for at := fileHeader; at+chunkHeader <= len(b); {
		h := b[at:][:chunkHeader]
		content := b[at+chunkHeader:]
		content = content[:min(len(content), int(binary.LittleEndian.Uint32(h[4:])))]
		if binary.LittleEndian.Uint32(h) == kindEnd && len(content) == endSize {
			binary.LittleEndian.PutUint32(content[8:], sum)
		}
		binary.LittleEndian.PutUint64(h[8:], index)
		binary.LittleEndian.PutUint32(h[16:], crc32.Checksum(content, castagnoli))
		binary.LittleEndian.PutUint32(h[20:], crc32.Checksum(h[:20], castagnoli))
		sum = crc32.Update(sum, castagnoli, h[:20])
		index++
		at += chunkHeader + len(content)
	}
	return b
}

// A memory is a file in memory.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// entry returns the entry that a manifest would have for a file.
func entry(b []byte) File {
	f := File{Bytes: int64(len(b))}
	if len(b) >= endSize {
		f.Parts = binary.LittleEndian.Uint64(b[len(b)-endSize:])
		f.Sum = binary.LittleEndian.Uint32(b[len(b)-4:])
	}
	return f
}

// decode reads a file, and returns its parts. It reads the data of every part if data is set.
func decode(b []byte, data bool) (parts []part, err error) {
	r, err := newReader(memory{bytes.NewReader(b)}, "fuzz", entry(b), 42)
	for err == nil {
		var head []byte
		if head, err = r.Next(); err != nil {
			break
		}
		p := part{head: bytes.Clone(head)}
		if data {
			p.data, err = io.ReadAll(r)
		}
		parts = append(parts, p)
	}
	if err == io.EOF {
		err = nil
	}
	return parts, err
}

// FuzzReader reads any bytes as a file, as they are and with all checksums set.
func FuzzReader(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "snapshot-00000042", "server-3"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:fileHeader])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, seal(b)} {
			parts, err := decode(b, true)
			heads, err2 := decode(b, false)
			if err == nil && err2 != nil || err == nil && len(heads) != len(parts) {
				t.Fatalf("got %d parts with data, and %d heads and %v without", len(parts), len(heads), err2)
			}
			total := 0
			for _, p := range parts {
				total += len(p.head) + len(p.data)
			}
			if total > len(b) {
				t.Fatalf("got %d bytes of a file of %d", total, len(b))
			}
			if sealed := seal(b); err == nil && !bytes.Equal(sealed, b) {
				t.Fatalf("accepted %x, want the checksums of %x", b, sealed)
			}
		}
	})
}

// FuzzManifest reads any bytes as a manifest.
func FuzzManifest(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "snapshot-00000042", manifestName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}\n"))
	f.Add([]byte(`{"format":1}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeManifest(b)
		if err != nil {
			return
		}
		for _, f := range s.Files {
			if filepath.Dir(filepath.Join("dir", f.Name)) != "dir" {
				t.Errorf("got the file %q in another directory", f.Name)
			}
		}
		text, err := encodeManifest(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeManifest(text); err != nil {
			t.Errorf("written again: %v", err)
		}
	})
}

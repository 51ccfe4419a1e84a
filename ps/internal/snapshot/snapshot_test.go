package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/test/golden"
)

// A part is what a test writes and reads.
type part struct {
	head, data []byte
}

// pattern returns n bytes that depend on the seed.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed)
	}
	return b
}

// state returns parts with all sizes at which the chunks change.
func state() (parts []part) {
	const content = chunkSize - chunkHeader
	for i, n := range []int{0, 1, 100, content - 1, content, content + 1, 2*content + 7} {
		parts = append(parts, part{fmt.Append(nil, "part ", i), pattern(n, i)})
	}
	return append(parts, part{[]byte{}, []byte("a part without a head")}, part{pattern(MaxHead, 1), nil})
}

// small returns a state of few bytes.
func small() []part {
	return []part{{[]byte("w1"), []byte("0123456789")}, {[]byte("w2"), nil}, {[]byte("w3"), []byte("abc")}}
}

// write writes the file of a server. Its data comes in pieces of the given size.
func write(t testing.TB, dir string, rank, piece int, parts []part) File {
	t.Helper()
	w, err := Create(dir, rank)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if err := w.Part(p.head); err != nil {
			t.Fatal(err)
		}
		for b := range slices.Chunk(p.data, piece) {
			if n, err := w.Write(b); n != len(b) || err != nil {
				t.Fatalf("got %d and %v, want %d bytes", n, err, len(b))
			}
		}
	}
	f, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// create creates a snapshot of some servers, which have one state each.
func create(t testing.TB, dir string, servers ...[]part) *Snapshot {
	t.Helper()
	s, err := Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.Registry = fmt.Append(nil, "registry ", s.Number)
	for i, parts := range servers {
		s.Files = append(s.Files, write(t, s.Dir, i+3, 1<<20, parts))
	}
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	return s
}

// find returns what Find finds, with the numbers of the snapshots that it has skipped.
func find(t testing.TB, dir string) (*Snapshot, []uint64) {
	t.Helper()
	s, skipped, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	var numbers []uint64
	for _, sk := range skipped {
		n, _ := number(filepath.Base(sk.Dir))
		numbers = append(numbers, n)
		if !strings.Contains(sk.Reason, sk.Dir) {
			t.Errorf("got the reason %q, want one that names %s", sk.Reason, sk.Dir)
		}
	}
	return s, numbers
}

// read reads the parts of a file whose heads are wanted.
func read(t testing.TB, s *Snapshot, file int, wanted func(head []byte) bool) (parts []part) {
	t.Helper()
	r, err := s.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		head, err := r.Next()
		if err == io.EOF {
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		if !wanted(head) {
			continue
		}
		p := part{head: bytes.Clone(head)}
		if p.data, err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
}

func all([]byte) bool { return true }

// equal reports the first part that differs.
func equal(t testing.TB, got, want []part) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d parts, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i].head, want[i].head) || !bytes.Equal(got[i].data, want[i].data) {
			t.Errorf("part %d: got %d bytes of head and %d of data that are not the %d and %d written", i,
				len(got[i].head), len(got[i].data), len(want[i].head), len(want[i].data))
		}
	}
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	for _, piece := range []int{999, 1 << 20, 16 << 20} {
		dir := t.TempDir()
		s, err := Begin(dir)
		if err != nil {
			t.Fatal(err)
		}
		s.Registry = []byte("declarations")
		s.Files = []File{write(t, s.Dir, 4, piece, state()), write(t, s.Dir, 7, piece, nil)}
		if err := s.Commit(); err != nil {
			t.Fatal(err)
		}
		found, skipped := find(t, dir)
		if !reflect.DeepEqual(found, s) || skipped != nil {
			t.Fatalf("got %+v, skipped %v, want %+v", found, skipped, s)
		}
		if err := found.Verify(t.Context(), 0, 1); err != nil {
			t.Error(err)
		}
		equal(t, read(t, found, 0, all), state())
		equal(t, read(t, found, 1, all), nil)
	}
}

func TestPartsThatNobodyWantsAreSkipped(t *testing.T) {
	s := create(t, t.TempDir(), state())
	want := slices.DeleteFunc(state(), func(p part) bool { return len(p.head) != 6 || p.head[5]%2 == 0 })
	equal(t, read(t, s, 0, func(head []byte) bool { return len(head) == 6 && head[5]%2 == 1 }), want)
}

// counted counts the bytes that are read of a file.
type counted struct {
	source
	bytes int
}

func (c *counted) ReadAt(p []byte, at int64) (int, error) {
	c.bytes += len(p)
	return c.source.ReadAt(p, at)
}

func TestSkippedPartsAreNotRead(t *testing.T) {
	s := create(t, t.TempDir(), state())
	f, err := os.Open(filepath.Join(s.Dir, s.Files[0].Name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := &counted{source: f}
	r, err := newReader(c, "", s.Files[0], s.Number)
	for err == nil {
		_, err = r.Next()
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	if limit := MaxHead + 1000; c.bytes > limit {
		t.Errorf("read %d bytes of %d, want at most the heads, %d", c.bytes, s.Files[0].Bytes, limit)
	}
	if _, err = r.Next(); err != io.EOF {
		t.Errorf("after the end: got %v, want io.EOF", err)
	}
}

func TestAWriterAndAReaderHoldOneChunk(t *testing.T) {
	dir, piece := t.TempDir(), pattern(1<<20, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s, err := Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := Create(s.Dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Part(nil); err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if _, err := w.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	f, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	s.Files = []File{f}
	if err := errors.Join(s.Commit(), s.Verify(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(2*chunkSize+1<<20); got > limit {
		t.Errorf("allocated %d bytes to write and verify 64 MiB, want at most %d", got, limit)
	}
}

// copyDir copies the files of a snapshot into another directory, after a change of one of them.
func copyDir(t testing.TB, from, to, changed string, change func([]byte) []byte) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err == nil && e.Name() == changed {
			b = change(b)
		}
		if err == nil && b != nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fixed returns the files of a snapshot that is the same on every run.
func fixed(t *testing.T) (dir string) {
	s := &Snapshot{Dir: filepath.Join(t.TempDir(), "snapshot-00000042"), Number: 42, Time: time.Unix(1e9, 0).UTC(), Registry: []byte("registry")}
	if err := os.Mkdir(s.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.Files = []File{write(t, s.Dir, 3, 1<<20, small())}
	text, err := encodeManifest(s)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.Dir, manifestName), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.Dir
}

// The files under testdata are of format 1. They must stay readable as long as the number stays.
func TestFormatOneIsWrittenAndRead(t *testing.T) {
	dir := fixed(t)
	for _, name := range []string{manifestName, "server-3"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, filepath.Join("testdata", "snapshot-00000042", name), string(b))
	}
	s, _ := find(t, "testdata")
	if err := s.Verify(t.Context(), 0); err != nil {
		t.Error(err)
	}
	equal(t, read(t, s, 0, all), small())
	if string(s.Registry) != "registry" || s.Time.Unix() != 1e9 || s.Number != 42 {
		t.Errorf("got %+v, want the registry, the time and the number of the golden file", s)
	}
}

// verify finds the snapshot, verifies it, and reads it without Verify. Both must agree.
func verify(dir string) error {
	s, _, err := Find(dir)
	if err != nil {
		return err
	}
	err = s.Verify(context.Background(), 0)
	if err2 := readAll(s); (err == nil) != (err2 == nil) {
		return fmt.Errorf("verified with %v, but read with %v", err, err2)
	}
	return err
}

func readAll(s *Snapshot) error {
	r, err := s.Open(0)
	if err != nil {
		return err
	}
	defer r.Close()
	for err == nil {
		if _, err = r.Next(); err == nil {
			_, err = io.Copy(io.Discard, r)
		}
	}
	if err == io.EOF {
		return nil
	}
	return err
}

func TestEveryChangedByteIsFound(t *testing.T) {
	from, to := fixed(t), filepath.Join(t.TempDir(), "snapshot-00000042")
	for _, name := range []string{"server-3", manifestName} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			copyDir(t, from, to, name, func(b []byte) []byte {
				b[i] ^= 0x10
				return b
			})
			err := verify(to)
			if err == nil {
				t.Errorf("%s: byte %d has changed: got no error", name, i)
			} else if strings.Contains(err.Error(), "but read with") || !strings.Contains(err.Error(), to) {
				t.Errorf("%s: byte %d has changed: got %v, want one error that names the file", name, i, err)
			}
		}
	}
}

func TestEveryTornFileIsSkipped(t *testing.T) {
	from, dir := fixed(t), t.TempDir()
	old := create(t, dir, small())
	to := filepath.Join(dir, "snapshot-00000042")
	for _, name := range []string{"server-3", manifestName} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		for n := range b {
			copyDir(t, from, to, name, func(b []byte) []byte { return b[:n] })
			if s, skipped := find(t, dir); s.Number != old.Number || !slices.Equal(skipped, []uint64{42}) {
				t.Fatalf("%s with %d bytes: got snapshot %d, skipped %v, want %d, and 42 skipped", name, n, s.Number, skipped, old.Number)
			}
		}
	}
	copyDir(t, from, to, "", nil)
	if s, skipped := find(t, dir); s.Number != 42 || skipped != nil {
		t.Errorf("got snapshot %d, skipped %v, want 42", s.Number, skipped)
	}
}

func TestTheNewestCompleteSnapshotIsFound(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := Find(dir); err == nil || !strings.Contains(err.Error(), dir+": got no complete snapshot, want one") {
		t.Errorf("empty directory: got %v", err)
	}
	if _, _, err := Find(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: got %v, want fs.ErrNotExist", err)
	}
	for i := range 11 {
		if s := create(t, dir, small()); s.Number != uint64(i+1) {
			t.Errorf("got number %d, want %d", s.Number, i+1)
		}
	}
	if err := os.Remove(filepath.Join(directory(dir, 11), manifestName)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(directory(dir, 10), "server-3")); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"other", "snapshot-", "snapshot-12", "snapshot-000000013", "snapshot-0000000x", "snapshot-9999999999999999"} {
		if err := os.Mkdir(filepath.Join(dir, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "snapshot-00000099"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, skipped := find(t, dir)
	if s.Number != 9 || !slices.Equal(skipped, []uint64{11, 10}) {
		t.Errorf("got snapshot %d, skipped %v, want 9, and 11 and 10 skipped", s.Number, skipped)
	}
	if s, _ := find(t, directory(dir, 3)); s.Number != 3 || string(s.Registry) != "registry 3" {
		t.Errorf("by its own directory: got snapshot %d with %q, want 3", s.Number, s.Registry)
	}
	if _, skipped, err := Find(directory(dir, 11)); err == nil || len(skipped) != 1 || !strings.Contains(err.Error(), "want the one that is written last") {
		t.Errorf("by its own directory, torn: got %v and %v, want an error with the reason", skipped, err)
	}
	if s, err := Begin(dir); err != nil || s.Number != 12 {
		t.Errorf("after torn ones: got %+v and %v, want number 12", s, err)
	}
}

func TestSnapshotsThatCannotBeUsedAreRefusedWithTheRemedy(t *testing.T) {
	replace := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(new), 1) }
	}
	for name, c := range map[string]struct {
		file   string
		change func([]byte) []byte
		want   []string
	}{
		"manifest of another format": {manifestName, replace(`"format":1`, `"format":2`), []string{
			manifestName + ": got format 2, want 1; restore this snapshot with the release that wrote it, or restore an older snapshot by the name of its own directory"}},
		"file of another format": {"server-3", replace("\n\x01", "\n\x07"), []string{
			"server-3: got format 7, want 1; restore this snapshot with the release that wrote it"}},
		"changed manifest": {manifestName, replace(`"number":42`, `"number":43`), []string{
			manifestName + ": got the checksum ", "the file is damaged: copy it from a backup, or restore an older snapshot by the name of its own directory"}},
		"changed data": {"server-3", replace("0123456789", "0123456788"), []string{
			"server-3: chunk 1 at offset 54: got the checksum ", "the file is damaged: copy it from a backup"}},
		"no such file": {"server-3", func([]byte) []byte { return []byte(strings.Repeat("x", 400)) }, []string{
			`server-3: chunk 0 at offset 0: got the first bytes "xxxxxxxx", want "tuttips\n"`}},
		"of another snapshot": {"server-3", func(b []byte) []byte {
			b[16] = 41
			return seal(b)
		}, []string{"got a file that server 3 wrote for snapshot 41, want one for snapshot 42"}},
		"other content of the same size": {"server-3", func(b []byte) []byte {
			return seal(bytes.Replace(b, []byte("0123456789"), []byte("9876543210"), 1))
		}, []string{"got a file {Name:server-3 Bytes:203 Parts:3 Sum:131032275}, want {Name:server-3 Bytes:203 Parts:3 Sum:1553970963} as the manifest states"}},
		"other number of parts": {"server-3", func(b []byte) []byte {
			b[len(b)-endSize] = 4
			return seal(b)
		}, []string{"got 3 parts with the checksum 5c9fb713, want 4 with 5c9fb713"}},
		"data before the first head": {"server-3", func(b []byte) []byte {
			b[fileHeader] = kindData
			return seal(b)
		}, []string{"chunk 0 at offset 28: got data, want the head of a part"}},
		"unknown kind": {"server-3", func(b []byte) []byte {
			b[fileHeader] = 9
			return seal(b)
		}, []string{"chunk 0 at offset 28: got the kind 9 with 2 bytes"}},
		"long chunk": {"server-3", func(b []byte) []byte {
			b[fileHeader+6] = 0x20 // 2 MiB
			return seal(b)
		}, []string{"chunk 0 at offset 28: got the kind 1 with 2097154 bytes"}},
		"chunks in another order": {"server-3", func(b []byte) []byte {
			swapped := append(bytes.Clone(b[:114]), b[140:167]...)
			return append(append(swapped, b[114:140]...), b[167:]...)
		}, []string{"got chunk 4"}},
		"file elsewhere": {manifestName, func(b []byte) []byte {
			text, err := encodeManifest(&Snapshot{Number: 42, Files: []File{{Name: "../server-3"}}})
			if err != nil {
				panic(err)
			}
			return text
		}, []string{`got the file "../server-3", want one in the same directory`}},
	} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "snapshot-00000042")
			copyDir(t, fixed(t), to, c.file, c.change)
			err := verify(to)
			if err == nil {
				t.Fatalf("got no error, want %q", c.want)
			}
			for _, w := range append(c.want, filepath.Join(to, c.file)) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("got %q, want %q", err, w)
				}
			}
		})
	}
}

func TestADamagedSnapshotDoesNotSilentlyYieldToAnOlderOne(t *testing.T) {
	dir := t.TempDir()
	create(t, dir, small())
	copyDir(t, fixed(t), directory(dir, 42), manifestName, func(b []byte) []byte { return bytes.Replace(b, []byte(":42"), []byte(":43"), 1) })
	if s, _, err := Find(dir); err == nil {
		t.Errorf("got snapshot %d, want an error", s.Number)
	}
	if s, _ := find(t, directory(dir, 1)); s.Number != 1 {
		t.Errorf("got snapshot %d, want 1", s.Number)
	}
}

func TestCommitFindsFilesThatAreElsewhere(t *testing.T) {
	dir := t.TempDir()
	s, err := Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := write(t, s.Dir, 1, 100, small())
	for name, files := range map[string][]File{
		"other directory": {f, {Name: "server-2", Bytes: f.Bytes}},
		"other size":      {{Name: f.Name, Bytes: f.Bytes + 1}},
	} {
		s.Files = files
		if err := s.Commit(); err == nil || !strings.Contains(err.Error(), "all servers must share the directory") {
			t.Errorf("%s: got %v, want the remedy", name, err)
		}
	}
	if err := s.Abandon(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("after Abandon: got %v and %v, want no entries", entries, err)
	}
}

func TestAWriterIsUsedInOrder(t *testing.T) {
	s, err := Begin(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	begin := func() *FileWriter {
		w, err := Create(s.Dir, 1)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	for name, c := range map[string]struct {
		use  func(w *FileWriter) error
		want string
	}{
		"data without a part": {func(w *FileWriter) error { _, err := w.Write([]byte("x")); return err }, "got data, want the head of a part first"},
		"large head":          {func(w *FileWriter) error { return w.Part(make([]byte, MaxHead+1)) }, "got a head of 1048577 bytes, want at most 1048576"},
		"aborted":             {func(w *FileWriter) error { w.Abort(); return w.Part(nil) }, "has been closed"},
	} {
		w := begin()
		err := c.use(w)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		_, err2 := w.Write([]byte("x"))
		_, err3 := w.Close()
		if w.Abort(); err2 != err || err3 != err || w.Part(nil) != err {
			t.Errorf("%s: got %v and %v, want the same error as before", name, err2, err3)
		}
	}
	w := begin() // all files are gone
	if _, err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.Write(nil); !errors.Is(err, errEnded) {
		t.Errorf("after Close: got %v, want %v", err, errEnded)
	}
	w.Abort()
	if _, err := Create(s.Dir, 1); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second file: got %v, want %v", err, fs.ErrExist)
	}
	if _, err := Create(t.TempDir(), 1); err == nil || !strings.Contains(err.Error(), "want the directory of a snapshot") {
		t.Errorf("other directory: got %v", err)
	}
}

func TestACanceledVerifyEnds(t *testing.T) {
	s := create(t, t.TempDir(), state())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Verify(ctx, 0); err != context.Canceled {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestAClosedReaderReadsNothing(t *testing.T) {
	s := create(t, t.TempDir(), small())
	r, err := s.Open(0)
	if err == nil {
		_, err = r.Next()
	}
	if err == nil {
		err = r.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want %v", err, os.ErrClosed)
	}
	if _, err := r.Next(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want %v", err, os.ErrClosed)
	}
}

// Of snapshots 1 to 6, number 2 is damaged, and 5 is not complete. The two newest complete ones are 6 and
// 4, so those before 4 go.
func TestPruneKeepsTheNewestCompleteSnapshots(t *testing.T) {
	dir := t.TempDir()
	for n := 1; n <= 6; n++ {
		s, err := Begin(dir)
		if err != nil {
			t.Fatal(err)
		}
		s.Files = []File{write(t, s.Dir, 0, 100, small())}
		if n == 5 {
			continue
		}
		if err := s.Commit(); err != nil {
			t.Fatal(err)
		}
		if n == 2 {
			if err := os.WriteFile(filepath.Join(s.Dir, manifestName), []byte("{}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		keep int
		want []uint64
	}{{9, []uint64{6, 5, 4, 3, 2, 1}}, {2, []uint64{6, 5, 4}}, {1, []uint64{6}}} {
		if err := Prune(dir, c.keep); err != nil {
			t.Fatal(err)
		}
		if got, err := list(dir); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("keep %d: got %v, %v, want %v", c.keep, got, err, c.want)
		}
	}
}

package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/atomicwriter"
)

const (
	format       = 1 // of manifests and files
	manifestName = "manifest.json"
	prefix       = "snapshot-" // of directories
	maxDigits    = 15          // of the number of a snapshot
	maxManifest  = 64 << 20    // bytes of a manifest
)

// A Snapshot is the manifest of a snapshot.
type Snapshot struct {
	Dir      string    `json:"-"`        // its directory, such as DIR/snapshot-00000042
	Number   uint64    `json:"number"`   // counts the snapshots within DIR, from 1
	Time     time.Time `json:"time"`     // at which it was completed
	Files    []File    `json:"files"`    // of the servers
	Registry []byte    `json:"registry"` // the declarations, as package ps encodes them
}

// A File is the entry of a server's file in the manifest. FileWriter.Close returns it on the server, and
// the lead adds it to the manifest.
type File struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Parts uint64 `json:"parts"`
	Sum   uint32 `json:"sum"` // the checksum of the whole file
}

// Begin creates the directory of the next snapshot within dir, and dir itself if it does not exist.
// The servers then write their files, and Commit completes the snapshot. Only the lead calls Begin,
// Commit and Abandon.
func Begin(dir string) (*Snapshot, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, explain(err)
	}
	numbers, err := list(dir)
	if err != nil {
		return nil, explain(err)
	}
	s := &Snapshot{Number: 1}
	if len(numbers) > 0 {
		s.Number = numbers[0] + 1
	}
	s.Dir = directory(dir, s.Number)
	err = os.Mkdir(s.Dir, 0o755)
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return nil, explain(err)
	}
	return s, nil
}

// Commit completes a snapshot whose Files and Registry are set. From now on Find finds it. Commit
// first checks that all files have their sizes, because a server without access to the lead's
// directory may have written its file elsewhere.
func (s *Snapshot) Commit() error {
	if reason := s.incomplete(); reason != nil {
		return fmt.Errorf("%w; all servers must share the directory, for example by a network file system", reason)
	}
	s.Time = time.Now().UTC().Round(time.Second)
	text, err := encodeManifest(s)
	if err != nil {
		return err
	}
	if err = atomicwriter.WriteFile(filepath.Join(s.Dir, manifestName), text, 0o644); err == nil {
		err = syncDir(s.Dir)
	}
	return explain(err)
}

// Abandon removes a snapshot that has failed before Commit has returned nil. The manifest goes
// first.
func (s *Snapshot) Abandon() error {
	if err := os.Remove(filepath.Join(s.Dir, manifestName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(s.Dir)
}

// Prune removes the snapshots within dir that are older than the newest complete ones, of which it keeps
// the given number. Like Abandon, it removes the manifest of a snapshot first. It returns the first error,
// and goes on with the others.
func Prune(dir string, keep int) error {
	numbers, err := list(dir)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		s := &Snapshot{Dir: directory(dir, n)}
		if keep > 0 {
			if _, reason, err := open(s.Dir); reason == nil && err == nil {
				keep--
			}
			continue
		}
		if e := s.Abandon(); err == nil {
			err = e
		}
	}
	return err
}

// A Skipped is a snapshot that Find has skipped.
type Skipped struct {
	Dir    string
	Reason string
}

// Find returns the newest complete snapshot within dir, and the newer snapshots that are not
// complete. If dir is the directory of a snapshot, Find considers only that one. Find reads
// manifests, and no files of servers: Verify reads those.
//
// A snapshot is not complete if its manifest or one of its files is missing or too short. Its server
// was killed, or its disk was full. By contrast, a manifest that was changed, or that has another
// format, is an error, because such a snapshot was complete. The user may restore an older one by
// the name of its directory.
func Find(dir string) (*Snapshot, []Skipped, error) {
	candidates := []string{dir}
	if _, ok := number(filepath.Base(dir)); !ok {
		numbers, err := list(dir)
		if err != nil {
			return nil, nil, err
		}
		candidates = candidates[:0]
		for _, n := range numbers {
			candidates = append(candidates, directory(dir, n))
		}
	}
	var skipped []Skipped
	var reasons strings.Builder
	for _, c := range candidates {
		s, reason, err := open(c)
		if err != nil {
			return nil, skipped, err
		}
		if reason == nil {
			return s, skipped, nil
		}
		skipped = append(skipped, Skipped{c, reason.Error()})
		fmt.Fprintf(&reasons, "; %v", reason)
	}
	return nil, skipped, fmt.Errorf("%s: got no complete snapshot, want one%s", dir, reasons.String())
}

// open reads the manifest in the directory of a snapshot. It returns a reason if the snapshot is not
// complete, and an error if it cannot be used for another reason.
func open(dir string) (s *Snapshot, reason, err error) {
	path := filepath.Join(dir, manifestName)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: got no %s, want the one that is written last", dir, manifestName), nil
	}
	if err != nil {
		return nil, nil, err
	}
	if info.Size() > maxManifest {
		return nil, nil, fmt.Errorf("%s: got %d bytes, want at most %d%s", path, info.Size(), maxManifest, remedy)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if !bytes.HasSuffix(text, []byte("}\n")) {
		return nil, fmt.Errorf("%s: got an end after %d bytes, want a complete manifest", path, len(text)), nil
	}
	if s, err = decodeManifest(text); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	s.Dir = dir
	return s, s.incomplete(), nil
}

// incomplete returns the reason why a file cannot be complete.
func (s *Snapshot) incomplete() error {
	for _, f := range s.Files {
		path := filepath.Join(s.Dir, f.Name)
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Size() < f.Bytes {
			return fmt.Errorf("%s: got %d bytes, want %d", path, info.Size(), f.Bytes)
		}
	}
	return nil
}

// A manifest is the text of a manifest.
type manifest struct {
	Format   int             `json:"format"`
	CRC      uint32          `json:"crc32c"`
	Snapshot json.RawMessage `json:"snapshot"`
}

func encodeManifest(s *Snapshot) ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(manifest{format, crc32.Checksum(body, castagnoli), body})
	if len(text) >= maxManifest {
		return nil, fmt.Errorf("manifest: got %d bytes, want less than %d; declare fewer tensors", len(text), maxManifest)
	}
	return append(text, '\n'), err
}

func decodeManifest(text []byte) (*Snapshot, error) {
	var version struct{ Format int }
	if err := json.Unmarshal(text, &version); err != nil {
		return nil, fmt.Errorf("%w%s", err, remedy)
	}
	if version.Format != format {
		return nil, otherFormat(version.Format)
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%w%s", err, remedy)
	}
	if sum := crc32.Checksum(m.Snapshot, castagnoli); sum != m.CRC {
		return nil, fmt.Errorf("got the checksum %08x, want %08x%s", sum, m.CRC, remedy)
	}
	s := new(Snapshot)
	if err := json.Unmarshal(m.Snapshot, s); err != nil {
		return nil, fmt.Errorf("%w%s", err, remedy)
	}
	for _, f := range s.Files {
		if f.Name != filepath.Base(f.Name) || !filepath.IsLocal(f.Name) {
			return nil, fmt.Errorf("got the file %q, want one in the same directory%s", f.Name, remedy)
		}
	}
	return s, nil
}

// remedy ends the errors about files that were complete, and have changed since.
const remedy = "; the file is damaged: copy it from a backup, or restore an older snapshot by the name of its own directory"

// otherFormat returns the error about another format.
func otherFormat(got int) error {
	return fmt.Errorf("got format %d, want %d; restore this snapshot with the release that wrote it, or restore an older snapshot by the name of its own directory", got, format)
}

// explain adds the remedy to the error of a write.
func explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w; free some space, or name another directory; older snapshots stay valid", err)
	}
	return err
}

// Verify reads the files with the given indices in Files, and checks all checksums. It holds one
// chunk in memory.
func (s *Snapshot) Verify(ctx context.Context, files ...int) error {
	for _, i := range files {
		if err := s.verify(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (s *Snapshot) verify(ctx context.Context, file int) error {
	r, err := s.Open(file)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		if _, err := r.Next(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		for err = r.fill(); err == nil; err = r.fill() {
			r.data = nil
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if err != io.EOF {
			return err
		}
	}
}

// list returns the numbers of the snapshots within dir, complete or not, the newest first.
func list(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, e := range entries {
		if n, ok := number(e.Name()); ok && e.IsDir() {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, func(a, b uint64) int { return cmp.Compare(b, a) })
	return numbers, nil
}

// number returns the number of a snapshot by the name of its directory.
func number(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, ok && err == nil && len(digits) <= maxDigits && name == filepath.Base(directory("", n))
}

// directory returns the directory of a snapshot within dir.
func directory(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%s%08d", prefix, number))
}

// syncDir waits until the entries of a directory are on the disk. Windows has no such call.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

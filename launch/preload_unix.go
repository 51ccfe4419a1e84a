//go:build unix

package launch

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/launch/internal/remote"
)

// maxPreload bounds the bytes of all programs that a host stores for one job.
const maxPreload = 1 << 30

// A preload holds the programs that the launcher sends to each other host (Job.Preload). Apps with
// the same program share one entry. The goroutine in Run owns the fields. They do not change after
// prepare.
type preload struct {
	programs []remote.Preload
	files    []*os.File   // the files of the programs, open for the whole job
	numbers  map[*App]int // for each App, 1 + the index of its program in programs
}

// add looks up the program of an App on this host, and reads it to calculate its checksum.
func (p *preload) add(a *App, s *spec) error {
	if err := s.find(); err != nil {
		return err
	}
	path := s.program
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, path)
	}
	// Open would block on a named pipe without a writer.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("got no regular file, want one for --preload-binary")}
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(path)
	}
	if err != nil {
		return startFailure(a.Args[0], s.dir, err)
	}
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	if err != nil {
		f.Close()
		return startFailure(a.Args[0], s.dir, err)
	}
	sum := hash.Sum(nil)
	if p.numbers == nil {
		p.numbers = make(map[*App]int)
	}
	for i := range p.programs {
		if bytes.Equal(p.programs[i].Sum, sum) {
			f.Close()
			p.numbers[a] = i + 1
			return nil
		}
	}
	p.files = append(p.files, f)
	p.programs = append(p.programs, remote.Preload{Name: remote.Text(filepath.Base(path)), Size: size, Sum: sum})
	p.numbers[a] = len(p.programs)
	return nil
}

// send sends all programs, one after the other. The host detects missing and changed bytes. A host
// that closes the stream has failed, and reports the reason in its answer to Prepare.
func (p *preload) send(to net.Conn) {
	defer to.Close()
	for i, f := range p.files {
		n, err := io.Copy(to, io.NewSectionReader(f, 0, p.programs[i].Size))
		if err != nil || n < p.programs[i].Size {
			return
		}
	}
}

func (p *preload) close() {
	for _, f := range p.files {
		f.Close()
	}
}

// sendPrepare sends the first command to a host that has answered, and then the programs. The time
// limit for the answer assumes that all hosts together receive at least 1 MiB of programs per
// second.
func (r *run) sendPrepare(h *remoteHost) {
	h.first.Programs, h.first.TmpDir = r.preload.programs, remote.Text(r.job.TmpDir)
	limit := answerLimit
	for _, p := range r.preload.programs {
		limit += time.Duration(int(p.Size>>20)*len(r.others.hosts)) * time.Second
	}
	h.expect(r.now(), limit)
	h.send(&remote.Command{Prepare: &h.first})
	if len(r.preload.programs) > 0 {
		r.others.work.Go(func() { r.preload.send(h.link.Stream(0, remote.Programs)) })
	}
}

// A preloadDir is the private directory in which a node stores the programs of its job, each in a
// directory of its own:
//
//	tutti-RANDOM/0/hello
//	tutti-RANDOM/1/other
//
// The goroutine in node.run owns path. If the node is killed, its guardian removes the directory.
type preloadDir struct {
	path     string        // "" if the job preloads no programs
	incoming chan net.Conn // the launcher's stream, at most one
	work     sync.WaitGroup
}

// offer hands over a stream that the launcher has opened. It does not block.
func (d *preloadDir) offer(c net.Conn) {
	select {
	case d.incoming <- c:
	default:
		c.Close()
	}
}

// program returns the path of a program by its number in remote.Start, or "" for 0.
func (d *preloadDir) program(number int, programs []remote.Preload) string {
	if number < 1 || number > len(programs) {
		return ""
	}
	return filepath.Join(d.path, strconv.Itoa(number-1), filepath.Base(string(programs[number-1].Name)))
}

// remove removes the directory, after the last write to it. The connection to the launcher has
// ended, and the stream of the programs with it, so no further write begins.
func (d *preloadDir) remove() error {
	d.work.Wait()
	if d.path == "" {
		return nil
	}
	return os.RemoveAll(d.path)
}

// answer sends the answer to Prepare, once all programs of the job are stored.
func (n *node) answer(c *remote.Prepare, p *remote.Prepared) {
	if len(c.Programs) == 0 || p.Failed != "" {
		n.events.Send(&remote.Event{Prepared: p})
		return
	}
	n.programs = c.Programs
	base := cmp.Or(string(c.TmpDir), os.Getenv("TMPDIR"), os.Getenv("XDG_RUNTIME_DIR"), "/tmp")
	n.preload.path = filepath.Join(base, "tutti-"+rand.Text())
	d := &n.preload
	d.work.Go(func() {
		if err := n.receivePrograms(base); err != nil {
			p.Failed = err.Error()
		}
		n.events.Send(&remote.Event{Prepared: p})
	})
}

// otherDir is the remedy for an unsuitable directory.
const otherDir = "choose another directory by --tmpdir, or copy the program to the host and leave out --preload-binary"

// receivePrograms makes the directory, and stores the programs in it.
func (n *node) receivePrograms(base string) error {
	total := int64(0)
	for _, p := range n.programs {
		if p.Size < 0 || p.Size > maxPreload-total {
			return fmt.Errorf("%s: got more than %d MiB of programs, want fewer: copy them to the host, and leave out --preload-binary", p.Name, maxPreload>>20)
		}
		total += p.Size
	}
	if !filepath.IsAbs(base) || strings.ContainsRune(base, '\n') || len(base) > 4<<10 {
		return fmt.Errorf("--preload-binary: got the directory %q, want an absolute path: %s", base, otherDir)
	}
	d := &n.preload
	// The guardian must know the directory before it exists.
	n.local.guardian.keep(d.path)
	if err := os.Mkdir(d.path, 0o700); err != nil {
		return fmt.Errorf("--preload-binary: %w: %s", err, otherDir)
	}
	var from net.Conn
	select {
	case from = <-d.incoming:
	case <-n.events.Done():
		return errors.New("the launcher has gone")
	}
	defer from.Close()
	// Serve closes the stream at the end of the connection, but may first wait for other hosts. So
	// this goroutine closes the stream at once.
	stored := make(chan struct{})
	defer close(stored)
	go func() {
		select {
		case <-n.events.Done():
			from.Close()
		case <-stored:
		}
	}()
	for i := range n.programs {
		if err := storeProgram(d.program(i+1, n.programs), &n.programs[i], from); err != nil {
			return err
		}
	}
	return nil
}

// storeProgram writes one program to a file, and compares its checksum.
func storeProgram(path string, p *remote.Preload, from io.Reader) error {
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		return storeFailure(p, path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return storeFailure(p, path, err)
	}
	hash := sha256.New()
	n, err := int64(0), unix.Access(path, unix.X_OK)
	if errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%s: cannot run from %s, which is on a file system that is mounted noexec: %s", p.Name, filepath.Dir(path), otherDir)
	} else if err == nil {
		n, err = io.CopyN(io.MultiWriter(f, hash), from, p.Size)
		err = storeFailure(p, path, err)
	}
	// A process that is being forked may have the file open for writing until its exec, and until
	// then the kernel would refuse to run the file. The lock waits for such a fork. After Close, no
	// later fork can inherit the file.
	syscall.ForkLock.Lock()
	err2 := f.Close()
	syscall.ForkLock.Unlock()
	switch {
	case err != nil:
		return err
	case err2 != nil:
		return storeFailure(p, path, err2)
	case !bytes.Equal(hash.Sum(nil), p.Sum):
		return fmt.Errorf("%s: got SHA-256 %x of %d bytes, want %x: the program has changed while it was sent; start the job again", p.Name, hash.Sum(nil), n, p.Sum)
	}
	return nil
}

// storeFailure explains why a program could not be stored.
func storeFailure(p *remote.Preload, path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe):
		return fmt.Errorf("%s: got fewer than %d bytes of it, want all: the program has changed while it was sent, or cannot be read; start the job again", p.Name, p.Size)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%s: %w: want room for %d bytes there; free some, or %s", p.Name, err, p.Size, otherDir)
	}
	return fmt.Errorf("%s: %w: %s", p.Name, err, otherDir)
}

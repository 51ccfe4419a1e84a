package shm

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/leak"
	"github.com/tutti-go/tutti/transport"
)

// refuseMemory is what memfd_create says where it is forbidden.
func refuseMemory(int) (int, error) { return -1, os.NewSyscallError("memfd_create", unix.EPERM) }

// refuseDescriptor is what sendmsg says where a descriptor may not be sent.
func refuseDescriptor(int, []byte, int) error { return os.NewSyscallError("sendmsg", unix.EPERM) }

// stripDescriptor is a way on which descriptors are taken out.
func stripDescriptor(socket int, b []byte, _ int) error {
	return unix.Sendmsg(socket, b, nil, nil, unix.MSG_NOSIGNAL)
}

// emptyAtLast is a directory for files of memory, none of which may be left when
// the test ends.
func emptyAtLast(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	tb.Cleanup(func() {
		if left := namesIn(tb, dir); len(left) > 0 {
			tb.Errorf("files are left behind: %q", left)
		}
	})
	return dir
}

func namesIn(tb testing.TB, dir string) (names []string) {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// newWithout is a Transport that has to do without some ways, and has files in dir.
func newWithout(tb testing.TB, dir string, o Options, take func(*ways)) *Transport {
	t := New(o)
	tb.Cleanup(func() { t.Close() })
	t.ways.dirs = []string{dir}
	if take != nil {
		take(&t.ways)
	}
	return t
}

// Whatever does not work at either end, a Conn comes about that carries frames, and
// no name is left once both have it.
func TestAConnFindsAWayToShareMemory(t *testing.T) {
	once := func(w *ways) { // as when descriptors run out for a moment, or a limit on memory is met
		sealed, calls := w.sealed, 0
		w.sealed = func(size int) (int, error) {
			if calls++; calls == 2 {
				return -1, unix.ENFILE
			}
			return sealed(size)
		}
	}
	for name, tc := range map[string]struct {
		near, far func(*ways)
		naming    bool
	}{
		"all of them":                      {},
		"no anonymous memory here":         {near: func(w *ways) { w.sealed = refuseMemory }},
		"no anonymous memory there":        {far: func(w *ways) { w.sealed = refuseMemory }},
		"anonymous memory that fails once": {near: once},
		"descriptors may not be sent":      {near: func(w *ways) { w.pass = refuseDescriptor }, naming: true},
		"descriptors are taken out":        {near: func(w *ways) { w.pass = stripDescriptor }, naming: true},
		"neither memory nor descriptors":   {near: func(w *ways) { w.sealed, w.pass = refuseMemory, stripDescriptor }, naming: true},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			dir, j := emptyAtLast(t), new(logBuffer)
			near := newWithout(t, dir, Options{Log: slog.New(slog.NewTextHandler(j, nil))}, tc.near)
			far := newWithout(t, dir, Options{}, tc.far)
			conns := make(chan transport.Conn, 1)
			addr, err := far.Serve(nil, func(c transport.Conn) { conns <- c })
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				c, err := near.Dial(testContext(t), addr)
				if err != nil {
					t.Fatal(err)
				}
				d := receive(t, conns)
				if left := namesIn(t, dir); len(left) > 0 {
					t.Errorf("there are names: %q", left)
				}
				d.(transport.Pending).Admit()
				c.Send(newFrame(1000))
				if got, gotThere := c.(*conn).seg.named, d.(*conn).seg.named; got != tc.naming || gotThere != tc.naming {
					t.Errorf("a file was named: got %v here, %v there, want %v", got, gotThere, tc.naming)
				}
				in := new(bufferSink)
				if err := pollUntil(d, in, 1); err != nil || in.last != 1000 {
					t.Errorf("%d bytes arrived: %v", in.last, err)
				}
			}
			if got := strings.Count(j.text(), "named instead"); got > 1 || got == 1 != tc.naming {
				t.Errorf("the log says %q", j.text())
			}
		})
	}
}

// transient fails to pass a descriptor once.
func transient(err error) func(*ways) {
	return func(w *ways) {
		failed := false
		w.pass = func(socket int, b []byte, fd int) error {
			if !failed {
				failed = true
				return os.NewSyscallError("sendmsg", err)
			}
			return passDescriptor(socket, b, fd)
		}
	}
}

// A lack of the moment has one meeting go by a name, and no other; what is exposed on
// other Conns, and Alloc, know nothing of it.
func TestADescriptorThatFailsOnceConcernsOneMeeting(t *testing.T) {
	for _, lack := range []error{unix.ETOOMANYREFS, unix.ENOBUFS, unix.ENOMEM, unix.EMFILE, unix.EPERM} {
		leak.Check(t)
		dir := emptyAtLast(t)
		near, far := newWithout(t, dir, Options{}, transient(lack)), newWithout(t, dir, Options{}, nil)
		conns := make(chan transport.Conn, 1)
		addr, err := far.Serve(nil, func(c transport.Conn) { conns <- c })
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []error{fault.Refused, nil} {
			c, err := near.Dial(testContext(t), addr)
			if err != nil {
				t.Fatal(err)
			}
			d := receive(t, conns)
			d.(transport.Pending).Admit()
			for _, c := range []*conn{c.(*conn), d.(*conn)} {
				mem, _ := alloc(t, c, 100)
				_, release, err := c.Expose(1, mem)
				if !errors.Is(err, want) {
					t.Errorf("%v: Conn %d: got %v, want %v", lack, i, err, want)
				}
				if err == nil {
					release()
				}
			}
		}
		near.Close()
		far.Close()
	}
}

// Who has proven nothing may say that its descriptor was lost, and name a file.
func TestAStrangersHelloChangesNothing(t *testing.T) {
	leak.Check(t)
	dir := emptyAtLast(t)
	far := newWithout(t, dir, Options{}, nil)
	stranger := newWithout(t, dir, Options{}, func(w *ways) { w.pass = stripDescriptor })
	conns := make(chan transport.Conn, 1)
	addr, err := far.Serve(nil, func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Dial(testContext(t), addr); err != nil {
		t.Fatal(err)
	}
	guest := receive(t, conns).(*conn)
	if !guest.seg.named || far.namesWith(guest.peerCred.Pid) {
		t.Errorf("a guest's file has a name: got %v; Shares go by names: got %v", guest.seg.named, far.namesWith(guest.peerCred.Pid))
	}
	guest.Admit()
	if !far.namesWith(guest.peerCred.Pid) || far.namesWith(guest.peerCred.Pid+1) {
		t.Error("a Share goes by a name with the process to which a Conn does, once that is admitted, and with no other")
	}
	c, err := newWithout(t, dir, Options{}, nil).Dial(testContext(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	d := receive(t, conns).(*conn)
	d.Admit()
	mem, _ := alloc(t, d, 100)
	to, release := expose(t, d, 1, mem)
	defer release()
	if err := sendExposed(c.(*conn), d, new(bufferSink), to, 0, []byte("abc")); err != nil || string(mem[:3]) != "abc" {
		t.Errorf("the memory holds %q: %v", mem[:3], err)
	}
}

// Where no way is left the error tells of each.
func TestNoWayToShareMemoryIsAnError(t *testing.T) {
	leak.Check(t)
	here, _ := detectLocality()
	_, name, _ := serveForTest(t, Options{})
	near := newWithout(t, t.TempDir()+"/none", Options{}, func(w *ways) { w.sealed = refuseMemory })
	_, err := near.Dial(testContext(t), address{here, name}.String())
	if !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "memfd_create") || !strings.Contains(err.Error(), "/none") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want %v", err, fault.Exhausted)
	}
}

// A peer that looks for names elsewhere is one that this one cannot share memory with.
func TestAPeerWithOtherDirectoriesRefuses(t *testing.T) {
	leak.Check(t)
	near := newWithout(t, emptyAtLast(t), Options{}, func(w *ways) { w.pass = refuseDescriptor })
	far := newWithout(t, emptyAtLast(t), Options{}, nil)
	addr, err := far.Serve(nil, func(transport.Conn) {})
	if err != nil {
		t.Fatal(err)
	}
	_, err = near.Dial(testContext(t), addr)
	if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "there is no ") || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("got %v, want %v that names TMPDIR", err, fault.Refused)
	}
	near.ways.pass = passDescriptor
	if c, err := near.Dial(testContext(t), addr); err != nil || c.(*conn).seg.named {
		t.Errorf("when descriptors pass again: got %v", err)
	}
}

// The name goes when the peer says nothing, or no, or dies.
func TestANameGoesWhenTheMeetingFails(t *testing.T) {
	leak.Check(t)
	for name, answer := range map[string]func([]byte) []byte{
		"silence":       func([]byte) []byte { return nil },
		"turned away":   func(b []byte) []byte { b[8] = answerRejected; return b },
		"not passed":    func(b []byte) []byte { b[8] = sayNotPassed; return b },
		"without proof": func(b []byte) []byte { return b },
	} {
		dir := emptyAtLast(t)
		near := newWithout(t, dir, Options{}, func(w *ways) { w.pass = refuseDescriptor })
		if _, err := near.Dial(testContext(t), fakeServer(t, answer)); err == nil {
			t.Errorf("%s: dialled", name)
		}
		if left := namesIn(t, dir); len(left) > 0 {
			t.Errorf("%s: files are left behind: %q", name, left)
		}
	}
}

// Ranks of all sorts share memory: it is one, and no name is left.
func TestAShareFindsAWay(t *testing.T) {
	for name, tc := range map[string]struct {
		take   func(*ways) // from every rank, as any of them may become the host
		naming int         // the rank that asks for a name; -1: none
	}{
		"no anonymous memory":         {func(w *ways) { w.sealed = refuseMemory }, -1},
		"descriptors may not be sent": {func(w *ways) { w.pass = refuseDescriptor }, -1},
		"sent to one and no more": {func(w *ways) {
			calls := 0
			w.pass = func(socket int, b []byte, fd int) error {
				if calls++; calls > 1 {
					return unix.ETOOMANYREFS
				}
				return passDescriptor(socket, b, fd)
			}
		}, -1},
		"one rank gets none": {func(*ways) {}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			const ranks = 4
			dir, job := emptyAtLast(t), randomName()
			type shared struct {
				mem     []byte
				release func() error
				err     error
			}
			got := make(chan shared, ranks)
			for rank := range ranks {
				tr := newWithout(t, dir, Options{Job: job}, tc.take)
				tr.lost.Store(rank == tc.naming)
				go func() {
					mem, release, err := tr.Share(testContext(t), "name", ranks, 5000)
					got <- shared{mem, release, err}
				}()
			}
			var all []shared
			for range ranks {
				s := receive(t, got)
				if s.err != nil {
					t.Fatal(s.err)
				}
				all = append(all, s)
			}
			if left := namesIn(t, dir); len(left) > 0 {
				t.Errorf("there are names: %q", left)
			}
			for _, s := range all {
				(*atomic.Int32)(unsafe.Pointer(&s.mem[4996])).Add(1)
			}
			for _, s := range all {
				if n := (*atomic.Int32)(unsafe.Pointer(&s.mem[4996])).Load(); n != ranks {
					t.Errorf("%d of %d ranks have written into the memory", n, ranks)
				}
				s.release()
			}
		})
	}
}

// Who cannot get a descriptor says so, and does better the next time.
func TestAShareWhoseDescriptorsAreTakenOutFailsOnce(t *testing.T) {
	leak.Check(t)
	dir, job := emptyAtLast(t), randomName()
	var ranks [2]*Transport
	for i := range ranks {
		ranks[i] = newWithout(t, dir, Options{Job: job}, func(w *ways) { w.pass = stripDescriptor })
	}
	for round, want := range []int{1, 0} {
		failed := make(chan error, len(ranks))
		for _, tr := range ranks {
			go func() {
				_, release, err := tr.Share(testContext(t), "name", len(ranks), 100)
				if err == nil {
					release()
				}
				failed <- err
			}()
		}
		got := 0
		for range ranks {
			if receive(t, failed) != nil {
				got++
			}
		}
		if got != want {
			t.Errorf("round %d: %d ranks failed, want %d", round, got, want)
		}
	}
}

// A host that dies as soon as it has named the file leaves the name to the others.
func TestAVisitorRemovesTheNameOfADeadHost(t *testing.T) {
	leak.Check(t)
	dir := emptyAtLast(t)
	tr := newWithout(t, dir, Options{}, nil)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + tr.shareName("name")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan error, 1)
	go func() {
		_, release, err := tr.Share(testContext(t), "name", 2, 100)
		if err == nil {
			err = release()
		}
		got <- err
	}()
	nc, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, _, err := readRequest(nc); err != nil {
		t.Fatal(err)
	}
	m, err := tr.ways.newFile(100, true)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(m.fd)
	b := makeReply(replyMemory, shareRequest{})
	m.ticket.put(b[24:])
	nc.Write(b)
	var opened [1]byte
	if _, err := io.ReadFull(nc, opened[:]); err != nil || opened[0] != visitorOpened {
		t.Errorf("got %q, %v", opened, err)
	}
	nc.Close()
	if err := receive(t, got); err != nil {
		t.Error(err)
	}
}

func TestOnlyAFileOfThisUserAloneIsOpened(t *testing.T) {
	leak.Check(t)
	w := ways{dirs: []string{t.TempDir()}}
	m, err := w.newFile(4096, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	for name, tc := range map[string]struct {
		change func(path string) error // of a path that holds a copy of what is right
		tk     func(*ticket)
		size   int
		want   string
	}{
		"right":             {size: 4096},
		"of another size":   {size: 8192, want: "not memory of 8192"},
		"open to others":    {change: func(p string) error { return os.Chmod(p, 0o644) }, size: 4096, want: "mode 0644"},
		"with a link to it": {change: func(p string) error { os.Remove(p); return os.Symlink(m.path, p) }, size: 4096, want: "too many levels"},
		"with another name": {change: func(p string) error { return os.Link(p, p+"-") }, size: 4096, want: "2 names"},
		"a pipe":            {change: func(p string) error { os.Remove(p); return unix.Mkfifo(p, 0o600) }, size: 4096, want: "not memory of"},
		"none":              {change: os.Remove, size: 4096, want: "TMPDIR"},
		"nowhere":           {tk: func(tk *ticket) { tk.dir = 7 }, size: 4096, want: "number 7"},
	} {
		tk := ticket{how: byName, number: newNonce()}
		path, _ := tk.path(w.dirs)
		if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
		if tc.change != nil {
			if err := tc.change(path); err != nil {
				t.Fatal(err)
			}
		}
		if tc.tk != nil {
			tc.tk(&tk)
		}
		fd, err := w.take(tk, -1, tc.size)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("a file %s: got %v, want %q", name, err, tc.want)
		}
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// What is locked belongs to a process that lives, and what has other names to others.
func TestSweepRemovesWhatTheDeadHaveLeft(t *testing.T) {
	leak.Check(t)
	w := ways{dirs: []string{t.TempDir()}}
	m, err := w.newFile(10, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	number := newNonce()
	dead := filePrefix + hex.EncodeToString(number[:])
	for _, name := range []string{dead, "tutti-leak-1", "other", filePrefix + "0011"} {
		if err := os.WriteFile(filepath.Join(w.dirs[0], name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sweep(w.dirs[0])
	if got := namesIn(t, w.dirs[0]); len(got) != 4 || strings.Contains(strings.Join(got, " "), dead) {
		t.Errorf("got %q, want all but %s", got, dead)
	}
}

// Some file systems make no file without a name. One that has it from the start is
// locked in the next moment; if it was swept away in between, that is noticed.
func TestAFileThatBeginsWithAName(t *testing.T) {
	leak.Check(t)
	dir := emptyAtLast(t)
	m := &block{ticket: ticket{how: byName}}
	if err := m.createNamed([]string{dir}); err != nil {
		t.Fatal(err)
	}
	sweep(dir)
	if got := namesIn(t, dir); len(got) != 1 || filepath.Join(dir, got[0]) != m.path {
		t.Errorf("got %q, want %s", got, m.path)
	}
	if err := m.link([]string{dir}); err != nil || !m.lock() {
		t.Errorf("it has no name, or no lock: %v", err)
	}
	unix.Unlink(m.path)
	if m.lock() {
		t.Error("the loss of the name was not noticed")
	}
	m.close()
}

// Where a nameless file gets no name, one that has it from the start takes its place.
func TestAFileThatCannotBeLinkedIsMadeAnew(t *testing.T) {
	leak.Check(t)
	dirs := []string{emptyAtLast(t)}
	m := &block{ticket: ticket{how: byName, number: newNonce()}}
	taken, err := m.ticket.path(dirs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(taken, nil, 0o400); err != nil { // linkat finds it there; sweep leaves it
		t.Fatal(err)
	}
	if err := m.make(dirs, 4096, true); err != nil {
		t.Fatal(err)
	}
	fd, err := ways{dirs: dirs}.openFile(m.ticket, 4096)
	if err != nil || m.path == taken || !m.lock() {
		t.Errorf("got %s, %v", m.path, err)
	}
	unix.Close(fd)
	m.close()
	os.Remove(taken)
}

// A nameless file whose directory has gone can be neither linked nor made anew.
func TestAFileThatGetsNoNameInAnyWayTellsOfBoth(t *testing.T) {
	leak.Check(t)
	dirs := []string{filepath.Join(t.TempDir(), "gone")}
	if err := os.Mkdir(dirs[0], 0o700); err != nil {
		t.Fatal(err)
	}
	m := &block{ticket: ticket{how: byName, number: newNonce()}, fd: -1}
	if err := m.create(dirs, true); err != nil {
		t.Fatal(err)
	}
	m.unlink() // where it began with a name
	if err := os.Remove(dirs[0]); err != nil {
		t.Fatal(err)
	}
	err := m.name(dirs, 4096)
	if err == nil || !strings.Contains(err.Error(), "open: no such file") || !strings.Contains(err.Error(), "linkat: no such file") {
		t.Errorf("got %v, want why it could not be linked, and not be made anew", err)
	}
	m.close()
}

// What turns a peer away is cut; what helps has to come before.
func TestWhatAPeerIsToldBeginsWithWhatHelps(t *testing.T) {
	const path = "/dev/shm/" + filePrefix + "0123456789abcdef0123456789abcdef"
	const common = "share /dev/shm and TMPDIR, or pass descriptors"
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"no descriptor came, the table is full", notComeFor(unix.EMFILE), "raise ulimit -n: too many open files"},
		{"no descriptor came, the host's table is full", notComeFor(unix.ENFILE), "raise fs.file-max: too many open files in system"},
		{"the file is not there", notOpened(unix.ENOENT, path), common + "; there is no /dev/shm/"},
		{"the table is full", notOpened(unix.EMFILE, path), "raise ulimit -n: too many open files"},
		{"the host's table is full", notOpened(unix.ENFILE, path), "raise fs.file-max: too many open files in system"},
		{"it is not to be opened", notOpened(unix.EACCES, path), "run all ranks as one user: permission denied: /dev/shm/"},
		{"it cannot be opened otherwise", notOpened(unix.EIO, path), "input/output error: " + path},
		{"it is a link", notOpened(unix.ELOOP, path), "remove the link " + path + ":"},
	} {
		all := tc.err.Error()
		if got := all[:min(len(all), reasonRoom)]; !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: a peer hears %q, want %q", tc.name, got, tc.want)
		}
	}
	for _, err := range []error{nil, unix.EACCES, unix.ENOENT} { // no word of a full table
		if got := notComeFor(err); got != errNotPassed {
			t.Errorf("none came where / opens with %v: got %v, want %v", err, got, errNotPassed)
		}
	}
}

// playNames is a peer that names a file and waits, or else one after another.
// It ends when its standard input does.
func playNames(t *Transport, waits bool) {
	if !waits {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
	}
	for i := 0; ; i++ {
		m, err := t.ways.newBlock(segmentSize(minRing), true)
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		if i == 0 {
			fmt.Println(m.path)
		}
		if waits {
			bufio.NewReader(os.Stdin).ReadByte()
			m.close()
			return
		}
		m.close()
	}
}

// When nobody is left who knows of a name, the next one that serves removes it.
func TestNamesOfTheKilledGoWithTheNextToServe(t *testing.T) {
	leak.Check(t)
	dir := emptyAtLast(t)
	for round, part := range []string{"name waits", "name", "name", "name", "name", "name"} {
		p := startPeer(t, part, dirVar+"="+dir)
		if !strings.HasPrefix(p.addr, dir) {
			t.Fatal(p.addr)
		}
		p.kill()
		if left := namesIn(t, dir); round == 0 && len(left) != 1 {
			t.Errorf("a process that was killed has left %q, want one file", left)
		}
		if _, err := newWithout(t, dir, Options{}, nil).Serve(nil, func(transport.Conn) {}); err != nil {
			t.Fatal(err)
		}
		if left := namesIn(t, dir); len(left) > 0 {
			t.Errorf("%q stay", left)
		}
	}
}

// Who has accepted may be killed at any moment of a meeting by names.
func TestNothingIsLeftOfMeetingsWithTheKilled(t *testing.T) {
	leak.Check(t)
	dir := emptyAtLast(t)
	for range 8 {
		p := startPeer(t, "nothing", dirVar+"="+dir)
		near := newWithout(t, dir, Options{}, func(w *ways) { w.pass = refuseDescriptor })
		killer := time.AfterFunc(mrand.N(3*time.Millisecond), func() { p.Process.Kill() }) // any moment will do
		for err := error(nil); err == nil; {
			var c transport.Conn
			if c, err = near.Dial(testContext(t), p.addr); err == nil {
				c.Close()
			}
		}
		killer.Stop()
		if left := namesIn(t, dir); len(left) > 0 {
			t.Errorf("files are left behind: %q", left)
		}
		near.Close()
	}
}

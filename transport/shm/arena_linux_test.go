package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/leak"
	"github.com/tutti-go/tutti/internal/starved"
	"github.com/tutti-go/tutti/transport"
)

// alloc is memory of c's Transport, freed at the test's end.
func alloc(tb testing.TB, c *conn, n int) (mem []byte, free func() error) {
	tb.Helper()
	mem, free, err := c.t.Alloc(n)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { free() })
	return mem, free
}

// expose exposes buf to c's peer.
func expose(tb testing.TB, c *conn, id uint32, buf []byte) (to transport.Token, release func()) {
	tb.Helper()
	to, release, err := c.Expose(id, buf)
	if err != nil {
		tb.Fatal(err)
	}
	return to, release
}

// sendExposed sends body to where to says, and moves both ends until it is done.
func sendExposed(near, far *conn, in transport.Sink, to transport.Token, at int, body []byte) (err error) {
	done := false
	near.Send(&transport.Frame{To: to, Offset: at, Body: body, Done: func(e error) { done, err = true, e }})
	for !done {
		near.Progress(in)
	}
	for range 4 {
		if _, e := far.Progress(in); e != nil && err == nil {
			err = e
		}
	}
	return err
}

func TestMemoryNotFromAllocIsNotExposed(t *testing.T) {
	near, far := pair(t)
	mem, _ := alloc(t, near, 10_000)
	other, _ := alloc(t, far, 10_000)
	for name, buf := range map[string][]byte{"of the heap": make([]byte, 10_000), "of another Transport": other, "none": mem[:0]} {
		if to, release, err := near.Expose(1, buf); !errors.Is(err, fault.Refused) || release != nil || to != (transport.Token{}) {
			t.Errorf("memory %s: got %v, want %v", name, err, fault.Refused)
		}
	}
}

func TestAllocRefusesImpossibleSizes(t *testing.T) {
	tr, files := New(Options{}), New(Options{})
	files.ways.sealed = refuseMemory
	for _, tc := range []struct {
		t    *Transport
		size int
		want fault.Kind
	}{{tr, -1, fault.Misuse}, {tr, int(MaxBody) + 1, fault.Misuse}, {tr, int(MaxBody), fault.Exhausted}, {files, 1, fault.Refused}} {
		if mem, free, err := tc.t.Alloc(tc.size); !errors.Is(err, tc.want) || mem != nil || free != nil {
			t.Errorf("%d bytes: got %v, want %v", tc.size, err, tc.want)
		}
	}
	for range 2 {
		if mem, free, err := tr.Alloc(0); err != nil || len(mem) != 0 || free() != nil {
			t.Errorf("no bytes: got %v", err)
		}
	}
}

func TestArenasAreBounded(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	defer tr.Close()
	var frees []func() error
	for range arenaMost {
		_, free, err := tr.Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		frees = append(frees, free)
	}
	if _, _, err := tr.Alloc(1); !errors.Is(err, fault.Exhausted) {
		t.Errorf("one more: got %v, want %v", err, fault.Exhausted)
	}
	for _, free := range frees {
		if err := free(); err != nil {
			t.Fatal(err)
		}
	}
}

// What is freed is gone at once, though a peer has it mapped; what is exposed is not
// freed; and Close leaves the memory alone.
func TestFreeAndCloseOfAllocatedMemory(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	in := new(bufferSink)
	mem, free := alloc(t, far, 100_000)
	to, release := expose(t, far, 1, mem)
	if err := sendExposed(near, far, in, to, 0, bytes.Repeat([]byte{7}, len(mem))); err != nil || mem[99_999] != 7 {
		t.Fatal(err)
	}
	if err := free(); !errors.Is(err, fault.Misuse) {
		t.Errorf("free of what is exposed: got %v, want %v", err, fault.Misuse)
	}
	release()
	if err := free(); err != nil {
		t.Error(err)
	}
	if err := free(); !errors.Is(err, fault.Misuse) {
		t.Errorf("freed twice: got %v, want %v", err, fault.Misuse)
	}
	there := near.peerMemory.arenas[tokenOf(to).arena]
	if !bytes.Equal(there, make([]byte, len(there))) {
		t.Error("the peer still sees what was freed")
	}
	next, freeNext := alloc(t, far, 10)
	to, release = expose(t, far, 2, next)
	if err := sendExposed(near, far, in, to, 0, []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	if n := len(near.peerMemory.arenas); n != 1 {
		t.Errorf("%d arenas are mapped, want the one that lives", n)
	}
	release()
	far.t.Close()
	if string(next) != "0123456789" {
		t.Errorf("after Close the memory holds %q", next)
	}
	if err := freeNext(); err != nil {
		t.Errorf("free after Close: %v", err)
	}
	if _, _, err := far.t.Alloc(1); !errors.Is(err, fault.Closed) {
		t.Errorf("Alloc after Close: got %v, want %v", err, fault.Closed)
	}
}

// A peer is shown arenas without end, as long as few of them live at a time.
func TestManyArenasOneAfterTheOther(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	in := new(bufferSink)
	for i := range 2*knownMost + 10 {
		mem, free := alloc(t, far, 64)
		to, release := expose(t, far, 1, mem)
		if err := sendExposed(near, far, in, to, 0, []byte{byte(i)}); err != nil || mem[0] != byte(i) {
			t.Fatalf("arena %d holds %d: %v", i, mem[0], err)
		}
		release()
		if err := free(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(near.peerMemory.arenas); n > knownMost {
		t.Errorf("%d arenas are mapped, of at most %d", n, knownMost)
	}
}

func TestExposureSlotsAreBoundedAndReused(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	mem, _ := alloc(t, far, slotCount)
	var releases []func()
	for i := range slotCount {
		_, release := expose(t, far, uint32(i), mem[i:i+1])
		releases = append(releases, release)
	}
	if _, _, err := far.Expose(1, mem); !errors.Is(err, fault.Exhausted) {
		t.Errorf("one more: got %v, want %v", err, fault.Exhausted)
	}
	for _, release := range releases {
		release()
	}
	in := new(bufferSink)
	body := make([]byte, 64<<10)
	big, _ := alloc(t, far, len(body))
	turn := func() {
		to, release, err := far.Expose(1, big)
		if err != nil {
			t.Fatal(err)
		}
		f := transport.Frame{To: to, Body: body, Done: func(error) {}}
		near.Send(&f)
		for n := in.frames; in.frames == n; {
			near.Progress(in)
			far.Progress(in)
		}
		release()
	}
	turn()
	if got := testing.AllocsPerRun(100, turn); got > 2 { // the frame, and its Done
		t.Errorf("%v allocations for an exposure, want those of its frame", got)
	}
}

// A receiver that lies about where it exposes gets nothing written anywhere, and
// the frame is done all the same.
func TestForgedTokensAreNotWrittenTo(t *testing.T) {
	const size = 3 * 4096
	for name, lie := range map[string]func(*token){
		"a stale number":          func(k *token) { k.number-- },
		"a number to come":        func(k *token) { k.number++ },
		"no number":               func(k *token) { k.number = 0 },
		"another slot":            func(k *token) { k.slot++ },
		"no slot":                 func(k *token) { k.slot = slotCount },
		"the arena's head":        func(k *token) { k.at = 0 },
		"not all behind the head": func(k *token) { k.at = arenaHead - 1 },
		"the arena's end":         func(k *token) { k.at = arenaHead + size; k.size = 1 },
		"behind the arena":        func(k *token) { k.at = 1 << 40 },
		"far behind":              func(k *token) { k.at = 1<<64 - 1; k.size = 2 },
		"too large":               func(k *token) { k.size = size + 1 },
		"far too large":           func(k *token) { k.size = 1<<64 - 1 },
		"smaller than the frame":  func(k *token) { k.size = 99 },
	} {
		near, far := pair(t)
		far.Admit()
		in := new(bufferSink)
		mem, _ := alloc(t, far, size)
		honest, release := expose(t, far, 1, mem[:200])
		if err := sendExposed(near, far, in, honest, 0, []byte{0}); err != nil { // the arena is mapped
			t.Fatal(err)
		}
		whole := near.peerMemory.arenas[tokenOf(honest).arena]
		before := bytes.Clone(whole)
		k := tokenOf(honest)
		lie(&k)
		err := sendExposed(near, far, in, k.bytes(), 0, bytes.Repeat([]byte{9}, 100))
		if !bytes.Equal(whole, before) {
			t.Errorf("%s: something was written", name)
		}
		if k.slot < slotCount && k.number == tokenOf(honest).number && k.slot == tokenOf(honest).slot {
			// By its own books the receiver has exposed that; what it gets is its loss.
			if err != nil {
				t.Errorf("%s: got %v", name, err)
			}
		} else if !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want %v", name, err, fault.Misuse)
		}
		release()
	}
}

func TestFrameIntoAnArenaThatWasNeverShownEndsTheConn(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	to := token{arena: 77, number: 1, at: arenaHead, size: 10}.bytes()
	if err := sendExposed(near, far, new(bufferSink), to, 0, []byte("x")); !errors.Is(err, fault.LinkLost) {
		t.Errorf("got %v, want %v", err, fault.LinkLost)
	}
}

// A place within the exposed memory need not be a multiple of anything.
func TestExposedMemoryNeedsNoAlignment(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	mem, _ := alloc(t, far, 20_000)
	to, release := expose(t, far, 1, mem[4095:12_345])
	defer release()
	in := new(bufferSink)
	if err := sendExposed(near, far, in, to, 3, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, len(mem))
	copy(want[4098:], "abc")
	if !bytes.Equal(mem, want) {
		t.Error("the bytes went elsewhere")
	}
}

// A sender that lies about what it has written fails its Conn.
func TestForgedWrittenRecordsFailTheConn(t *testing.T) {
	for _, v := range [][4]uint64{
		{1, 1, 0, 1}, {slotCount, 1, 0, 1}, {1 << 63, 1, 0, 1}, {0, 0, 0, 1}, {0, 2, 0, 1},
		{0, 1, 101, 0}, {0, 1, 0, 101}, {0, 1, 100, 1}, {0, 1, 1, 1<<64 - 1}, {0, 1, 1<<64 - 1, 1}, {0, 1, 1 << 63, 1 << 63},
	} {
		_, c, r := ringPair(minRing)
		c.exposures.table[0] = exposure{number: 1, id: 5, buf: make([]byte, 100), arena: new(arena)}
		binary.NativeEndian.PutUint64(r, uint64(makeHeader(kindWritten, 0, 0, 0)))
		for i, x := range v {
			binary.NativeEndian.PutUint64(r[8+8*i:], x)
		}
		k := &recordingSink{tb: t}
		if err := k.drain(c, 10); !errors.Is(err, fault.Misuse) || len(k.got) > 0 {
			t.Errorf("%v: got %v and %q, want %v", v, err, k.got, fault.Misuse)
		}
	}
}

// What a peer sends over the socket is held to what a note can be.
func TestNotesThatCannotBeEndTheConn(t *testing.T) {
	note := func(kind byte, id uint32, size int) []byte {
		b := make([]byte, arenaMessage)
		b[0] = kind
		binary.NativeEndian.PutUint32(b[4:], id)
		binary.NativeEndian.PutUint64(b[8:], uint64(size))
		return b
	}
	sealed := func() (int, error) { return createSealed(8192) }
	for name, tc := range map[string]struct {
		note   []byte
		memory func() (int, error)
	}{
		"without memory":       {note(1, 1, 8192), nil},
		"of another kind":      {note(2, 1, 8192), sealed},
		"of unsealed memory":   {note(1, 1, 8192), func() (int, error) { return unsealed(8192) }},
		"of more than there":   {note(1, 1, 3*4096), sealed},
		"of less than a head":  {note(1, 1, 100), sealed},
		"of a negative size":   {note(1, 1, -1), sealed},
		"of another file":      {note(1, 1, 8192), func() (int, error) { return unix.Open("/dev/null", unix.O_RDWR, 0) }},
		"that comes twice":     {append(note(1, 0, 8192), note(1, 0, 8192)...), sealed},
		"to an unknown friend": {note(1, 1, 8192), sealed}, // who has not admitted the sender
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			near, far := pair(t)
			if name != "to an unknown friend" {
				far.Admit()
			}
			var rights []byte
			if tc.memory != nil {
				fd, err := tc.memory()
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				rights = unix.UnixRights(fd)
			}
			if err := unix.Sendmsg(near.fd, tc.note, rights, nil, 0); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(testTimeout); far.firstErr.Get() == nil; time.Sleep(time.Millisecond) { // nobody is armed: the watcher's finding wakes nobody
				if time.Now().After(deadline) {
					t.Fatal("the Conn lives on")
				}
			}
		})
	}
}

// The receiver of a note may have no room for another descriptor. Its Conn ends, and
// says why.
func TestANoteWhoseDescriptorIsLostNamesTheRemedy(t *testing.T) {
	leak.Check(t)
	near, far := pair(t)
	far.Admit()
	far.t.ways.pass = stripDescriptor // from now on
	mem, _ := alloc(t, far, 100)
	to, release := expose(t, far, 1, mem)
	defer release()
	err := sendExposed(near, far, new(bufferSink), to, 0, []byte("abc"))
	if !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "raise ulimit -n") {
		t.Errorf("got %v, want %v", err, fault.Exhausted)
	}
	full := startPeer(t, "full").addr
	if !strings.Contains(full, "raise ulimit -n: too many open files; no room for the descriptor") {
		t.Errorf("a process without room for descriptors says %q", full)
	}
}

// runWithoutStdin reads a descriptor where the lowest one is free, and a ring without one.
func runWithoutStdin() {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	memory, err2 := createSealed(8192)
	if err != nil || err2 != nil {
		fmt.Println(err, err2)
		return
	}
	unix.Close(0)
	var b [64]byte
	fds := make([]int, 2)
	for i, rights := range [][]byte{unix.UnixRights(memory), nil} {
		if err := unix.Sendmsg(pair[0], []byte{1}, rights, nil, 0); err != nil {
			fmt.Println(err)
			return
		}
		_, fds[i], _ = readSocket(pair[1], &b)
	}
	r := &peerMemory{fd: fds[0]}
	r.close()
	_, err = unix.FcntlInt(0, unix.F_GETFD, 0)
	fmt.Println(fds, r.fd, err)
}

// The memory that a peer shows to a daemon may have the descriptor 0 there.
func TestDescriptorZeroIsAccepted(t *testing.T) {
	if got, want := startPeer(t, "inputless").addr, "[0 -1] -1 bad file descriptor"; got != want {
		t.Errorf("descriptors read, then what a note had before and after its end: got %q, want %q", got, want)
	}
}

// Descriptors may pass one way only; then one side shows nothing, the Conn lives, and
// each side that knows of it says so, once.
func TestWhoGetsNoDescriptorsIsShownNothing(t *testing.T) {
	for name, pass := range map[string]func(int, []byte, int) error{"may not be sent": refuseDescriptor, "are taken out": stripDescriptor} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			dir, here, there := emptyAtLast(t), new(logBuffer), new(logBuffer)
			n := newWithout(t, dir, Options{Log: slog.New(slog.NewTextHandler(here, nil))}, nil)
			f := newWithout(t, dir, Options{Log: slog.New(slog.NewTextHandler(there, nil))}, func(w *ways) { w.pass = pass })
			conns := make(chan transport.Conn, 1)
			addr, err := f.Serve(nil, func(c transport.Conn) { conns <- c })
			if err != nil {
				t.Fatal(err)
			}
			var near, far *conn
			for range 2 {
				c, err := n.Dial(testContext(t), addr)
				if err != nil {
					t.Fatal(err)
				}
				near, far = c.(*conn), receive(t, conns).(*conn)
			}
			if got := strings.Count(here.text(), "copied twice"); got != 1 {
				t.Errorf("the log of who dialled says so %d times, want once: %q", got, here.text())
			}
			if got, knows := strings.Count(there.text(), "copied twice"), name == "may not be sent"; got > 1 || got == 1 != knows {
				t.Errorf("the log of who accepted says so %d times, want once: %v: %q", got, knows, there.text())
			}
			far.Admit()
			hidden, _ := alloc(t, far, 100)
			if _, _, err := far.Expose(1, hidden); !errors.Is(err, fault.Refused) {
				t.Errorf("got %v, want %v", err, fault.Refused)
			}
			mem, _ := alloc(t, near, 100)
			to, release := expose(t, near, 1, mem)
			defer release()
			if err := sendExposed(far, near, new(bufferSink), to, 0, []byte("abc")); err != nil || string(mem[:3]) != "abc" {
				t.Errorf("the memory holds %q: %v", mem[:3], err)
			}
		})
	}
}

// A peer that was stopped in the middle of writing goes on some day; by then the
// memory is not its any more.
func TestStoppedWriterKeepsItsPages(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	in := new(bufferSink)
	mem, free := alloc(t, far, 5*4096)
	part := mem[4096+100 : 3*4096]
	to, release := expose(t, far, 1, part)
	if err := sendExposed(near, far, in, to, 0, bytes.Repeat([]byte{1}, len(part))); err != nil {
		t.Fatal(err)
	}
	k := tokenOf(to)
	near.peerMemory.slots[k.slot].Store(k.number<<1 | 1) // it begins to write, and stops
	began := time.Now()
	release()
	if took := time.Since(began); took < detachAfter || took > testTimeout/2 {
		t.Errorf("release took %v, want a little more than %v", took, detachAfter)
	}
	theirs := near.peerMemory.arenas[k.arena][k.at:][:k.size]
	for i := range theirs {
		theirs[i] = 2 // it goes on
	}
	if !bytes.Equal(part, bytes.Repeat([]byte{1}, len(part))) {
		t.Error("memory was written after its release")
	}
	if _, _, err := far.Expose(1, mem); !errors.Is(err, fault.Refused) {
		t.Errorf("such memory is exposed again: %v", err)
	}
	if err := free(); err != nil {
		t.Error(err)
	}
}

// writeExposed writes without end where the first frame says, which carries a token.
func writeExposed(c transport.Conn) {
	in := new(bufferSink)
	c.Send(newFrame(0)) // whoever sees this has been admitted
	if pollUntil(c, in, 1) != nil {
		return
	}
	to := transport.Token(in.buf[:len(transport.Token{})])
	var over atomic.Bool
	for i := range 4 {
		f := &transport.Frame{To: to, Offset: i * 4096, Body: bytes.Repeat([]byte{byte(i + 1)}, 300_000)}
		f.Done = func(err error) {
			if err != nil {
				over.Store(true)
				return
			}
			c.Send(f)
		}
		c.Send(f)
	}
	sleepUntil(c, in, over.Load)
}

// A peer is killed at any moment while it writes into exposed memory: that is
// noticed within a second, release returns, and nothing beside it was written.
func TestWriterKilledAtRandomMoments(t *testing.T) {
	leak.Check(t)
	for round := range 8 {
		p := startPeer(t, "write")
		c := dialPeer(t, p.addr).(*conn)
		in := new(bufferSink)
		if err := pollUntil(c, in, 1); err != nil {
			t.Fatal(err)
		}
		mem, free := alloc(t, c, 1<<20)
		to, release := expose(t, c, 1, mem[4096+8:4096+8+350_000])
		f := newFrame(0)
		f.Body = to[:]
		c.Send(f)
		if err := pollUntil(c, in, 3+round); err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() { failed <- pollUntil(c, in, 1<<60) }()
		time.Sleep(mrand.N(5 * time.Millisecond)) // any moment will do
		waited := starved.Since(os.Getpid())
		p.kill()
		killed := time.Now()
		err := receive(t, failed)
		release()
		if took := time.Since(killed); took > time.Second+waited() || !errors.Is(err, fault.LinkLost) {
			t.Errorf("round %d: %v after %v", round, err, took)
		}
		for i, b := range mem {
			if in := i >= 4096+8 && i < 4096+8+3*4096+300_000; b > 4 || !in && b != 0 {
				t.Fatalf("round %d: byte %d is %d", round, i, b)
			}
		}
		c.t.Close()
		if err := free(); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkExposed is one round trip of bodies that are written straight into the
// other's memory, within one process: what one copy and its bookkeeping cost.
func BenchmarkExposed(b *testing.B) {
	for _, size := range benchSizes[3:] {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			near, far := pair(b)
			far.Admit()
			in := new(bufferSink)
			mem, _ := alloc(b, far, size)
			f := newFrame(size)
			b.SetBytes(int64(size))
			for b.Loop() {
				to, release := expose(b, far, 1, mem)
				f.To = to
				near.Send(f)
				for n := in.frames; in.frames == n; {
					near.Progress(in)
					far.Progress(in)
				}
				release()
			}
		})
	}
}

package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/transport"
)

// alloc returns memory of c's Transport, which is freed at the test's end.
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

// sendExposed sends body into exposed memory, and polls both ends until it has arrived.
func sendExposed(near, far *conn, in transport.Sink, to transport.Token, at int, body []byte) (err error) {
	done := false
	near.Send(&transport.Frame{To: to, Offset: at, Body: body, Done: func(e error) { done, err = true, e }})
	for !done {
		near.Progress(in, 1)
	}
	for range 4 {
		if _, e := far.Progress(in, 1); e != nil && err == nil {
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
	tr := New(Options{})
	defer tr.Close()
	for _, tc := range []struct {
		size int
		want fault.Kind
	}{{-1, fault.Misuse}, {int(MaxBody) + 1, fault.Misuse}, {int(MaxBody), fault.Exhausted}} {
		if mem, free, err := tr.Alloc(tc.size); !errors.Is(err, tc.want) || mem != nil || free != nil {
			t.Errorf("%d bytes: got %v, want %v", tc.size, err, tc.want)
		}
	}
	for range 2 {
		if mem, free, err := tr.Alloc(0); err != nil || len(mem) != 0 || free() != nil {
			t.Errorf("no bytes: got %v", err)
		}
	}
}

func TestManyAllocationsUseOneDescriptor(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	defer tr.Close()
	before := openFiles(t)
	var frees []func() error
	for range 2000 {
		_, free, err := tr.Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		frees = append(frees, free)
	}
	if n := openFiles(t) - before; n != 1 {
		t.Errorf("2000 allocations use %d descriptors, want 1", n)
	}
	mrand.Shuffle(len(frees), func(i, j int) { frees[i], frees[j] = frees[j], frees[i] })
	for _, free := range frees {
		if err := free(); err != nil {
			t.Fatal(err)
		}
	}
	if p := &tr.pool; len(p.holes) != 1 || p.holes[0] != (extent{0, p.size}) {
		t.Errorf("%d holes are left in a pool of %d bytes, want one of all", len(p.holes), p.size)
	}
}

// openFiles counts this process's descriptors.
func openFiles(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(entries)
}

// Random allocations must begin as zeros, keep the written bytes, and use freed ranges again. So
// the pool must stay about as large as the memory that is allocated at one time.
func TestAllocationsDoNotOverlap(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	defer tr.Close()
	type live struct {
		mem  []byte
		fill byte
		free func() error
	}
	var all []live
	rng := mrand.New(mrand.NewPCG(1, 2))
	for i := range 1500 {
		if len(all) > 20 || len(all) > 0 && rng.IntN(3) == 0 {
			k := rng.IntN(len(all))
			l := all[k]
			if !bytes.Equal(l.mem, bytes.Repeat([]byte{l.fill}, len(l.mem))) {
				t.Fatalf("step %d: an allocation of %d bytes was overwritten", i, len(l.mem))
			}
			if err := l.free(); err != nil {
				t.Fatal(err)
			}
			all = append(all[:k], all[k+1:]...)
			continue
		}
		mem, free, err := tr.Alloc(1 + rng.IntN(1<<(8+rng.IntN(8))))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mem, make([]byte, len(mem))) {
			t.Fatalf("step %d: new memory is not zero", i)
		}
		fill := byte(i%255 + 1)
		for k := range mem {
			mem[k] = fill
		}
		all = append(all, live{mem, fill, free})
	}
	if most := 21 * 2 * (1 << 16); tr.pool.size > most {
		t.Errorf("the pool has %d bytes, want at most %d: freed ranges are not used again", tr.pool.size, most)
	}
	for _, l := range all {
		l.free()
	}
}

// Freed memory must be given back to the system at once, even if a peer has mapped it. Exposed
// memory must not be freed. Close must keep allocated memory.
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
	there := near.peerMemory.mem
	if len(there) < 100_000 || !bytes.Equal(there, make([]byte, len(there))) {
		t.Error("the peer still sees what was freed")
	}
	next, freeNext := alloc(t, far, 10)
	to, release = expose(t, far, 2, next)
	if err := sendExposed(near, far, in, to, 0, []byte("0123456789")); err != nil {
		t.Fatal(err)
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

// When a pool has grown, the peer must map it again, and must be able to write to old and new
// allocations.
func TestPeerMapsAPoolThatGrows(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	in := new(bufferSink)
	var mems [][]byte
	var tokens []transport.Token
	for i := range 12 {
		mem, _ := alloc(t, far, 1000<<i)
		to, release := expose(t, far, uint32(i), mem)
		defer release()
		mems, tokens = append(mems, mem), append(tokens, to)
		for k := range mems {
			body := bytes.Repeat([]byte{byte(i + 1)}, len(mems[k]))
			if err := sendExposed(near, far, in, tokens[k], 0, body); err != nil || !bytes.Equal(mems[k], body) {
				t.Fatalf("allocation %d after the growth to %d: wrong bytes, or %v", k, i, err)
			}
		}
	}
	if got, want := len(near.peerMemory.mem), far.t.pool.size; got != want {
		t.Errorf("%d bytes are mapped, want %d", got, want)
	}
}

// If memory is repeatedly allocated, exposed and freed, the pool must not grow.
func TestPoolDoesNotGrowByWhatIsFreed(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	in := new(bufferSink)
	for i := range 500 {
		mem, free := alloc(t, far, 64)
		to, release := expose(t, far, 1, mem)
		if err := sendExposed(near, far, in, to, 0, []byte{byte(i)}); err != nil || mem[0] != byte(i) {
			t.Fatalf("allocation %d holds %d: %v", i, mem[0], err)
		}
		release()
		if err := free(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := far.t.pool.size, os.Getpagesize(); got != want {
		t.Errorf("the pool has %d bytes, want %d", got, want)
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
			near.Progress(in, 1)
			far.Progress(in, 1)
		}
		release()
	}
	turn()
	if got := testing.AllocsPerRun(100, turn); got > 2 { // the frame, and its Done
		t.Errorf("%v allocations for an exposure, want those of its frame", got)
	}
}

// Memory for many writes stays exposed for a long time. This test checks that such exposures use at
// most half of the slots, so that receives of single messages always find a free slot.
func TestExposuresForManyWritesUseHalfOfTheSlots(t *testing.T) {
	_, far := pair(t)
	far.Admit()
	mem, _ := alloc(t, far, slotCount)
	var releases []func()
	for i := range preparedSlots {
		_, release := expose(t, far, transport.NoNotify, mem[i:i+1])
		releases = append(releases, release)
	}
	refused := func() {
		t.Helper()
		if _, _, err := far.Expose(transport.NoNotify, mem[:1]); !errors.Is(err, fault.Exhausted) {
			t.Errorf("one more for many writes: got %v, want %v", err, fault.Exhausted)
		}
	}
	refused()
	for range slotCount - preparedSlots {
		_, release := expose(t, far, 1, mem[:1])
		defer release()
	}
	if _, _, err := far.Expose(1, mem[:1]); !errors.Is(err, fault.Exhausted) {
		t.Errorf("one more for a message: got %v, want %v", err, fault.Exhausted)
	}
	releases[0]()
	releases[0]() // a second call must do nothing
	_, release := expose(t, far, transport.NoNotify, mem[:1])
	refused()
	release()
	for _, release := range releases {
		release()
	}
	if x := &far.exposures; x.prepared != 0 || len(x.free) != preparedSlots {
		t.Errorf("%d exposures for many writes are left, and %d slots are free, want none and %d", x.prepared, len(x.free), preparedSlots)
	}
}

// If a token is forged, the sender must not write anywhere. The frame must still be done.
func TestForgedTokensAreNotWrittenTo(t *testing.T) {
	const size = 3 * 4096
	for name, lie := range map[string]func(*token){
		"a stale number":         func(k *token) { k.number-- },
		"a number to come":       func(k *token) { k.number++ },
		"no number":              func(k *token) { k.number = 0 },
		"another slot":           func(k *token) { k.slot++ },
		"no slot":                func(k *token) { k.slot = slotCount },
		"the pool's end":         func(k *token) { k.offset = size; k.size = 1 },
		"after the pool":         func(k *token) { k.offset = 1 << 40 },
		"far after the pool":     func(k *token) { k.offset = 1<<64 - 1; k.size = 2 },
		"too large":              func(k *token) { k.size = size + 1 },
		"far too large":          func(k *token) { k.size = 1<<64 - 1 },
		"smaller than the frame": func(k *token) { k.size = 99 },
	} {
		near, far := pair(t)
		far.Admit()
		in := new(bufferSink)
		mem, _ := alloc(t, far, size)
		honest, release := expose(t, far, 1, mem[:200])
		if err := sendExposed(near, far, in, honest, 0, []byte{0}); err != nil { // maps the pool
			t.Fatal(err)
		}
		whole := near.peerMemory.mem
		before := bytes.Clone(whole)
		k := tokenOf(honest)
		lie(&k)
		err := sendExposed(near, far, in, k.bytes(), 0, bytes.Repeat([]byte{9}, 100))
		if !bytes.Equal(whole, before) {
			t.Errorf("%s: something was written", name)
		}
		if k.slot < slotCount && k.number == tokenOf(honest).number && k.slot == tokenOf(honest).slot {
			// The receiver's own table lists this range as exposed, so the Conn does not fail.
			if err != nil {
				t.Errorf("%s: got %v", name, err)
			}
		} else if !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want %v", name, err, fault.Misuse)
		}
		release()
	}
}

func TestFrameIntoAPoolThatNeverCameEndsTheConn(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	to := token{number: 1, size: 10}.bytes()
	if err := sendExposed(near, far, new(bufferSink), to, 0, []byte("x")); !errors.Is(err, fault.LinkLost) {
		t.Errorf("got %v, want %v", err, fault.LinkLost)
	}
}

// Exposed memory, and an offset in it, must work with any alignment.
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

// If a sender announces bytes that it cannot have written, the Conn must fail.
func TestForgedWrittenRecordsFailTheConn(t *testing.T) {
	for _, v := range [][4]uint64{
		{1, 1, 0, 1}, {slotCount, 1, 0, 1}, {1 << 63, 1, 0, 1}, {0, 0, 0, 1}, {0, 2, 0, 1},
		{0, 1, 101, 0}, {0, 1, 0, 101}, {0, 1, 100, 1}, {0, 1, 1, 1<<64 - 1}, {0, 1, 1<<64 - 1, 1}, {0, 1, 1 << 63, 1 << 63},
	} {
		_, c, r := ringPair(minRing)
		c.exposures.table[0] = exposure{number: 1, id: 5, buf: make([]byte, 100), of: new(allocation)}
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

// Any message on the socket except a doorbell or the pool must end the Conn.
func TestInvalidSocketMessagesEndTheConn(t *testing.T) {
	sealed := func() (int, error) { return createMemfd(8192, growingSeals) }
	for name, tc := range map[string]struct {
		message []byte
		memory  func() (int, error)
		want    string
	}{
		"without a pool":   {[]byte{poolMessage}, nil, "raise ulimit -n"},
		"of another kind":  {[]byte{2}, sealed, "got message 2"},
		"unsealed memory":  {[]byte{poolMessage}, func() (int, error) { return unsealed(8192) }, "not sealed"},
		"another file":     {[]byte{poolMessage}, func() (int, error) { return unix.Open("/dev/null", unix.O_RDWR, 0) }, "want memory"},
		"a second pool":    {[]byte{poolMessage}, sealed, "a second pool"},
		"before the Admit": {[]byte{poolMessage}, sealed, "before the peer was admitted"},
		"after a doorbell": {[]byte{doorbellMessage, 7}, nil, "got message 7"},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			near, far := pair(t)
			if name != "before the Admit" {
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
			// A second pool message ends the Conn. Every other invalid message ends it the first
			// time.
			for range 2 {
				unix.Sendmsg(near.fd, tc.message, rights, nil, unix.MSG_NOSIGNAL)
			}
			// Reason: no callback is armed, so the watcher wakes nobody.
			for deadline := time.Now().Add(testTimeout); far.firstErr.Get() == nil; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the Conn lives on")
				}
			}
			if err := far.firstErr.Get(); !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// runWithoutStdin reads one message with a descriptor, which gets the number 0, and one message
// without a descriptor.
func runWithoutStdin() {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	memory, err2 := createMemfd(8192, growingSeals)
	if err != nil || err2 != nil {
		fmt.Println(err, err2)
		return
	}
	unix.Close(0)
	var b [socketRead]byte
	fds := make([]int, 2)
	for i, rights := range [][]byte{unix.UnixRights(memory), nil} {
		if err := unix.Sendmsg(pair[0], []byte{1}, rights, nil, 0); err != nil {
			fmt.Println(err)
			return
		}
		_, fds[i], _ = readSocket(pair[1], &b)
	}
	p := &peerMemory{fd: fds[0]}
	p.close()
	_, err = unix.FcntlInt(0, unix.F_GETFD, 0)
	fmt.Println(fds, p.fd, err)
}

// A daemon has closed standard input, so the descriptor of the peer's pool may have the number 0.
// The Conn must accept this descriptor.
func TestDescriptorZeroIsAccepted(t *testing.T) {
	if got, want := startPeer(t, "inputless").addr, "[0 -1] -1 bad file descriptor"; got != want {
		t.Errorf("descriptors read, then what a note had before and after its end: got %q, want %q", got, want)
	}
}

// A peer that was stopped in the middle of a write may continue after the release. Then it must
// write into pages that no other process uses.
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
	near.peerMemory.slots[k.slot].Store(k.number<<1 | 1) // the peer begins to write, and stops
	began := time.Now()
	release()
	if elapsed := time.Since(began); elapsed < detachAfter || elapsed > testTimeout/2 {
		t.Errorf("release took %v, want a little more than %v", elapsed, detachAfter)
	}
	theirs := near.peerMemory.mem[k.offset:][:k.size]
	for i := range theirs {
		theirs[i] = 2 // the peer continues
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

// writeExposed writes into the memory that the token in the first frame names, until the Conn
// fails.
func writeExposed(c transport.Conn) {
	in := new(bufferSink)
	c.Send(newFrame(0)) // the peer that receives it has been admitted
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

// A peer is killed while it writes into exposed memory. The death must be noticed within a second,
// release must return, and no byte outside the exposed memory may be written.
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
		// Reason: the test kills the process at an arbitrary moment.
		time.Sleep(mrand.N(5 * time.Millisecond))
		waited := starved.Since(os.Getpid())
		p.kill()
		killed := time.Now()
		err := receive(t, failed)
		release()
		if elapsed := time.Since(killed); elapsed > time.Second+waited() || !errors.Is(err, fault.LinkLost) {
			t.Errorf("round %d: %v after %v", round, err, elapsed)
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

// BenchmarkExposed measures the time to write one body straight into the peer's memory, within one
// process. This is the cost of one copy and its bookkeeping.
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
					near.Progress(in, 1)
					far.Progress(in, 1)
				}
				release()
			}
		})
	}
}

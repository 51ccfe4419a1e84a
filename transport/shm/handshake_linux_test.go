package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

// A logBuffer keeps what is logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *logBuffer) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *logBuffer) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// serveForTest returns a Transport that serves, and a channel of the Conns that it accepts.
func serveForTest(tb testing.TB, o Options) (t *Transport, name string, conns chan transport.Conn) {
	tb.Helper()
	t, conns = New(o), make(chan transport.Conn, 256)
	tb.Cleanup(func() { t.Close() })
	addr, err := t.Serve(nil, func(c transport.Conn) { conns <- c })
	if err != nil {
		tb.Fatal(err)
	}
	a, err := parseAddress(addr)
	if err != nil {
		tb.Fatal(err)
	}
	return t, a.name, conns
}

// dialRaw returns a plain connection to a socket.
func dialRaw(tb testing.TB, name string) *net.UnixConn {
	tb.Helper()
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: "@" + name})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(testTimeout))
	return nc
}

// rawHello returns a hello with these fields.
func rawHello(version, ring uint32) []byte {
	b := make([]byte, helloLen)
	copy(b, magic)
	binary.NativeEndian.PutUint32(b[8:], version)
	binary.NativeEndian.PutUint32(b[12:], ring)
	return b
}

// unsealed returns anonymous memory that can be shrunk.
func unsealed(size int) (int, error) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	return fd, err
}

func TestInvalidHellosAreRejected(t *testing.T) {
	size := segmentSize(minRing)
	proper := func() (int, error) {
		fd, err := createMemfd(size, fixedSeals)
		if err != nil {
			return -1, err
		}
		s, err := createSegment(fd, minRing, newNonce())
		if err == nil {
			s.close()
		}
		return fd, err
	}
	for name, tc := range map[string]struct {
		hello  []byte
		memory func() (int, error) // nil: none
		want   string              // in the log
	}{
		"HTTP":               {hello: []byte("GET / HTTP/1.1\r\nHost: 123456789012345678901234567890123456789012345678\r\n\r\n"), want: "a hello that begins with"},
		"another version":    {hello: rawHello(version+1, minRing), memory: proper, want: "got version 4, want 3"},
		"no memory":          {hello: rawHello(version, minRing), want: "removes descriptors"},
		"a small ring":       {hello: rawHello(version, 4096), memory: proper, want: "rings of 4096"},
		"a huge ring":        {hello: rawHello(version, 1<<31), memory: proper, want: "rings of 2147483648"},
		"an odd ring":        {hello: rawHello(version, minRing+64), memory: proper, want: "rings of 65600"},
		"less memory":        {hello: rawHello(version, 2*minRing), memory: proper, want: "bytes, want"},
		"unsealed memory":    {hello: rawHello(version, minRing), memory: func() (int, error) { return unsealed(size) }, want: "not sealed"},
		"memory of no Conn":  {hello: rawHello(version, minRing), memory: func() (int, error) { return createMemfd(size, fixedSeals) }, want: "without the header"},
		"another descriptor": {hello: rawHello(version, minRing), memory: func() (int, error) { return unix.Open("/dev/null", unix.O_RDWR, 0) }, want: "want memory"},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			j := new(logBuffer)
			_, to, conns := serveForTest(t, Options{Log: slog.New(slog.NewTextHandler(j, nil))})
			nc := dialRaw(t, to)
			var rights []byte
			if tc.memory != nil {
				fd, err := tc.memory()
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				rights = unix.UnixRights(fd)
			}
			if _, _, err := nc.WriteMsgUnix(tc.hello, rights, nil); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(nc)
			if err == nil && (len(answer)%answerLen != 0 || len(answer) == 0 || answer[len(answer)-answerLen+8] != answerRejected) {
				t.Errorf("got the answer %q", answer)
			}
			for deadline := time.Now().Add(testTimeout); j.text() == "" && time.Now().Before(deadline); {
				// Reason: the log comes after the answer, and has no event.
				time.Sleep(time.Millisecond)
			}
			if len(conns) > 0 || !strings.Contains(j.text(), tc.want) {
				t.Errorf("%d Conns, the log says %q, want %q", len(conns), j.text(), tc.want)
			}
		})
	}
}

// fakeServer answers each hello with the result of the given function, which gets an empty answer.
func fakeServer(t *testing.T, answer func(b []byte) []byte) (addr string) {
	here, err := detectLocality()
	if err != nil {
		t.Fatal(err)
	}
	name := "tutti-test-" + randomName()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			nc, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if fd, err := readWithRights(nc, make([]byte, helloLen)); err == nil {
				unix.Close(fd)
			}
			b := make([]byte, answerLen)
			copy(b, magic)
			nc.Write(answer(b))
			nc.Close()
		}
	}()
	return address{here, name}.String()
}

func TestInvalidAnswersAreRefused(t *testing.T) {
	leak.Check(t)
	for name, tc := range map[string]struct {
		answer func([]byte) []byte
		kind   fault.Kind
		want   string
	}{
		"silence":       {func([]byte) []byte { return nil }, fault.LinkLost, "no answer"},
		"half of it":    {func(b []byte) []byte { return b[:50] }, fault.LinkLost, "no answer"},
		"others' magic": {func(b []byte) []byte { return bytes.Repeat([]byte("x"), answerLen) }, fault.Refused, "an answer that begins with"},
		"no nonces":     {func(b []byte) []byte { return b }, fault.Refused, "the same memory"},
		"turned away":   {func(b []byte) []byte { b[8], b[9] = 1, 255; copy(b[48:], "because"); return b }, fault.Refused, "because"},
	} {
		tr := New(Options{})
		_, err := tr.Dial(testContext(t), fakeServer(t, tc.answer))
		if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %v with %q", name, err, tc.kind, tc.want)
		}
		tr.Close()
	}
}

// A Dial to a peer that never answers must end when its context ends or the Transport is closed.
func TestDialToSilentServerEndsWithItsContext(t *testing.T) {
	leak.Check(t)
	here, _ := detectLocality()
	name := "tutti-test-" + randomName()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tr := New(Options{})
	defer tr.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := tr.Dial(ctx, address{here, name}.String()); !errors.Is(err, fault.Timeout) {
		t.Errorf("got %v, want %v", err, fault.Timeout)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := tr.Dial(context.Background(), address{here, name}.String())
		ended <- err
	}()
	time.AfterFunc(5*time.Millisecond, func() { tr.Close() })
	if err := receive(t, ended); !errors.Is(err, fault.Closed) {
		t.Errorf("beside Close: got %v, want %v", err, fault.Closed)
	}
}

// While pending peers hold all slots, a further peer must wait. It must be served as soon as a slot
// becomes free.
func TestPendingConnsAreBounded(t *testing.T) {
	leak.Check(t)
	_, name, conns := serveForTest(t, Options{})
	var held []*net.UnixConn
	for range maxPending {
		held = append(held, dialRaw(t, name))
	}
	near := New(Options{})
	defer near.Close()
	here, _ := detectLocality()
	ended := make(chan error, 1)
	go func() {
		_, err := near.Dial(testContext(t), address{here, name}.String())
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("one peer more than there are slots was served: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	for _, nc := range held[:2] {
		nc.Close()
	}
	if err := receive(t, ended); err != nil {
		t.Fatal(err)
	}
	receive(t, conns)
}

// Pending peers that are admitted, or that close, must release their slots.
func TestPendingSlotsAreReused(t *testing.T) {
	leak.Check(t)
	_, name, conns := serveForTest(t, Options{})
	here, _ := detectLocality()
	near := New(Options{})
	defer near.Close()
	for i := range 2*maxPending + 10 {
		c, err := near.Dial(testContext(t), address{here, name}.String())
		if err != nil {
			t.Fatal(err)
		}
		far := receive(t, conns)
		if i%2 == 0 {
			far.(transport.Pending).Admit()
		} else {
			far.Close()
		}
		if i%3 > 0 {
			c.Close()
		}
	}
}

func TestLocalitiesAreCompared(t *testing.T) {
	p := locality{"0011", escape("node=1;a/b ü"), "4026531840", "1000.4026531837"}
	for _, tc := range []struct {
		change func(*locality)
		want   string
	}{
		{func(*locality) {}, ""},
		{func(q *locality) { q.boot = "0012" }, "another host"},
		{func(q *locality) { q.host = "node-2" }, `another host name, "node-2"`},
		{func(q *locality) { q.net = "1" }, "another network namespace"},
		{func(q *locality) { q.user = "0.4026531837" }, "another user"},
	} {
		q := p
		tc.change(&q)
		a, err := parseAddress(address{q, "name"}.String())
		if err != nil {
			t.Fatal(err)
		}
		if a.locality != q || a.name != "name" || len(a.String()) > transport.MaxAddr/2 {
			t.Errorf("%v became %v", q, a)
		}
		if got := p.difference(a.locality); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
		if (q.difference(p) == "") != (tc.want == "") {
			t.Error("the two places do not judge alike")
		}
	}
	if s := escape(strings.Repeat("ü", 64)); len(s) > maxFieldLen || strings.ContainsAny(s, ";=/@ ") {
		t.Errorf("escaped to %q", s)
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("0011/node/4026531840/1000.4026531837/@tutti-0")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddress(s)
		if err == nil && a.String() != s {
			t.Errorf("%q became %q", s, a)
		}
	})
}

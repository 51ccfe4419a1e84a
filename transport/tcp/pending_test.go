package tcp

import (
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

// forEachKind runs a check for a plain Transport and for one with TLS.
func forEachKind(t *testing.T, check func(t *testing.T, o Options)) {
	t.Run("plain", func(t *testing.T) { leak.Check(t); check(t, Options{}) })
	t.Run("TLS", func(t *testing.T) { leak.Check(t); check(t, Options{TLS: identity(t)}) })
}

// untilError calls Progress until it fails.
func untilError(tb testing.TB, c transport.Conn, in transport.Sink) error {
	tb.Helper()
	return move(tb, c, in, func() bool { return false })
}

func TestGarbageFromAnUnprovenPeerEndsTheConn(t *testing.T) {
	forEachKind(t, func(t *testing.T, o Options) {
		noise := make([]byte, 5000)
		rand.NewChaCha8([32]byte{1}).Read(noise)
		for _, opening := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", string(noise)} {
			nc, c := unprovenPeer(t, o)
			if _, err := io.WriteString(nc, opening); err != nil {
				t.Fatal(err)
			}
			in := new(bufferSink)
			err := untilError(t, c, in)
			if !errors.Is(err, fault.Refused) || in.frames != 0 {
				t.Errorf("%.16q: got %v and %d frames, want %v", opening, err, in.frames, fault.Refused)
			}
			c.Close()
		}
	})
}

// After a correct magic, bytes that are not a frame must end the Conn.
func TestNonsenseAfterTheMagicEndsTheConn(t *testing.T) {
	leak.Check(t)
	nc, c := unprovenPeer(t, Options{})
	io.WriteString(nc, magic+string(encode(0, "head", "body"))+strings.Repeat("\xFF", 100))
	in := new(bufferSink)
	err := untilError(t, c, in)
	if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "invalid frame") || in.frames != 1 {
		t.Errorf("got %v and %d frames, want the first frame and then nonsense", err, in.frames)
	}
}

func TestPendingPeersBodiesAreSmall(t *testing.T) {
	forEachKind(t, func(t *testing.T, o Options) {
		near, far := pair(t, o)
		in := new(bufferSink)
		for i, size := range []int{pendingBody, pendingBody + 1} {
			near.Send(&transport.Frame{Body: make([]byte, size), Done: func(error) {}})
			err := move(t, far, in, func() bool { return in.frames > i })
			if ok := err == nil; ok != (size <= pendingBody) || !ok && !errors.Is(err, fault.Refused) {
				t.Errorf("a body of %d bytes before Admit: got %v", size, err)
			}
		}
		if cap(in.body) > pendingBody {
			t.Errorf("%d bytes were asked for, want at most %d", cap(in.body), pendingBody)
		}
	})
}

func TestAdmittedPeersBodiesAreNot(t *testing.T) {
	forEachKind(t, func(t *testing.T, o Options) {
		near, far := pair(t, o)
		far.(transport.Pending).Admit()
		far.(transport.Pending).Admit() // a second call must do no harm
		near.Send(&transport.Frame{Body: make([]byte, 10*pendingBody), Done: func(error) {}})
		in := new(bufferSink)
		if err := move(t, far, in, func() bool { return in.frames == 1 }); err != nil {
			t.Error(err)
		}
	})
}

func TestPlainPeerIsRefusedUnderTLS(t *testing.T) {
	leak.Check(t)
	o := Options{TLS: identity(t)}
	server := New(o)
	defer server.Close()
	conns := make(chan transport.Conn, 1)
	addr, err := server.Serve(listen(t), func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	client := New(Options{})
	defer client.Close()
	near, err := client.Dial(soon(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	near.Send(&transport.Frame{Head: []byte("hello"), Done: func(error) {}})
	if err := untilError(t, receive(t, conns), new(bufferSink)); !errors.Is(err, fault.Refused) {
		t.Errorf("got %v, want %v", err, fault.Refused)
	}
}

func TestDialIsRefusedByTLS(t *testing.T) {
	leak.Check(t)
	good, other := identity(t), identity(t)
	for name, client := range map[string]*TLS{
		"unknown authority": other,
		"another name":      {CAFile: good.CAFile, CertFile: good.CertFile, KeyFile: good.KeyFile, ServerName: "elsewhere.test"},
	} {
		t.Run(name, func(t *testing.T) {
			server, tr := New(Options{TLS: good}), New(Options{TLS: client})
			defer server.Close()
			defer tr.Close()
			addr, err := server.Serve(listen(t), func(c transport.Conn) { go untilError(t, c, new(bufferSink)) })
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tr.Dial(soon(t), addr); !errors.Is(err, fault.Refused) {
				t.Errorf("got %v, want %v", err, fault.Refused)
			}
		})
	}
}

// A client without a certificate must get the error at its first read, because in TLS 1.3 its
// handshake ends before the server has checked the certificate.
func TestClientWithoutCertificateIsRefused(t *testing.T) {
	leak.Check(t)
	good := identity(t)
	server, tr := New(Options{TLS: good}), New(Options{TLS: &TLS{CAFile: good.CAFile}})
	defer server.Close()
	defer tr.Close()
	conns := make(chan transport.Conn, 1)
	addr, err := server.Serve(listen(t), func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	near, err := tr.Dial(soon(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := untilError(t, receive(t, conns), new(bufferSink)); !errors.Is(err, fault.Refused) {
		t.Errorf("the server got %v, want %v", err, fault.Refused)
	}
	if err := untilError(t, near, new(bufferSink)); !errors.Is(err, fault.LinkLost) {
		t.Errorf("the client got %v, want %v", err, fault.LinkLost)
	}
}

func TestBadTLSOptionsAreMisuse(t *testing.T) {
	tr := New(Options{TLS: &TLS{CertFile: "missing.pem"}})
	defer tr.Close()
	l := listen(t)
	if _, err := tr.Serve(l, func(transport.Conn) {}); !errors.Is(err, fault.Misuse) {
		t.Errorf("Serve: got %v, want %v", err, fault.Misuse)
	}
	if _, err := tr.Dial(soon(t), l.Addr().String()); !errors.Is(err, fault.Misuse) {
		t.Errorf("Dial: got %v, want %v", err, fault.Misuse)
	}
}

// A peekedTestConn is a connection as the mux yields it: its first bytes were already read.
type peekedTestConn struct {
	net.Conn
	first  []byte
	admits *atomic.Int32
	closed *atomic.Int32
	bind   func(end func() error)
}

func (v peekedTestConn) Peeked() []byte    { return v.first }
func (v peekedTestConn) NetConn() net.Conn { return v.Conn }
func (v peekedTestConn) Admit()            { v.admits.Add(1) }
func (v peekedTestConn) SetCloser(end func() error) {
	if v.bind != nil {
		v.bind(end)
	}
}
func (v peekedTestConn) Close() error { v.closed.Add(1); return v.Conn.Close() }

// A muxListener reads the first bytes of each connection. If it has a TLS configuration, it does
// the TLS handshake first.
type muxListener struct {
	net.Listener
	peek             int
	tls              *tls.Config
	admitted, closed atomic.Int32
	bind             func(end func() error)
}

func (f *muxListener) Accept() (net.Conn, error) {
	nc, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if f.tls != nil {
		nc = tls.Server(nc, f.tls)
	}
	first := make([]byte, f.peek)
	if _, err := io.ReadFull(nc, first); err != nil {
		return nil, err
	}
	return peekedTestConn{nc, first, &f.admitted, &f.closed, f.bind}, nil
}

func TestListenerMayHaveReadTheFirstBytes(t *testing.T) {
	forEachKind(t, func(t *testing.T, o Options) {
		for _, peek := range []int{0, 4, 9, len(magic) + preambleLen + 4 + 7000} {
			f := &muxListener{Listener: listen(t), peek: peek}
			if o.TLS != nil {
				var err error
				if f.tls, err = o.TLS.Server(proto); err != nil {
					t.Fatal(err)
				}
			}
			checkMuxListener(t, f, o)
		}
	})
}

func checkMuxListener(t *testing.T, f *muxListener, o Options) {
	t.Helper()
	near, far := New(o), New(o)
	defer near.Close()
	defer far.Close()
	conns := make(chan transport.Conn, 1)
	addr, err := far.Serve(f, func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	out, err := near.Dial(soon(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	out.Send(&transport.Frame{Head: []byte("head"), Body: make([]byte, 4000), Done: func(error) {}})
	out.Send(&transport.Frame{Head: []byte("next"), Body: make([]byte, 4000), Done: func(error) {}})
	c, in := receive(t, conns), new(bufferSink)
	woken := make(chan struct{})
	c.Arm(func() { close(woken) }) // bytes that the listener has read must wake, too
	receive(t, woken)
	c.(transport.Pending).Admit()
	if err := move(t, c, in, func() bool { return in.frames == 2 }); err != nil {
		t.Fatal(err)
	}
	c.Close()
	far.Close()
	if f.admitted.Load() != 1 || f.closed.Load() != 1 {
		t.Errorf("%d bytes read: the front heard of %d Admits and %d Closes, want 1 and 1",
			f.peek, f.admitted.Load(), f.closed.Load())
	}
}

// The mux may close a connection at any time, before or after the connection has become a Conn.
// Then the Conn must fail with fault.Closed.
func TestListenerMayCloseWhatItYielded(t *testing.T) {
	leak.Check(t)
	ends := make(chan func() error, 1)
	for name, bind := range map[string]func(end func() error){
		"at once": func(end func() error) { end(); ends <- end },
		"later":   func(end func() error) { ends <- end },
	} {
		f := &muxListener{Listener: listen(t), bind: bind}
		tr := New(Options{})
		conns := make(chan transport.Conn, 1)
		addr, err := tr.Serve(f, func(c transport.Conn) { conns <- c })
		if err != nil {
			t.Fatal(err)
		}
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c := receive(t, conns)
		if end := receive(t, ends); name == "later" {
			end()
		}
		if err := untilError(t, c, new(bufferSink)); !errors.Is(err, fault.Closed) {
			t.Errorf("%s: got %v, want %v", name, err, fault.Closed)
		}
		nc.Close()
		tr.Close()
	}
}

func TestPlainConnectionOfAMuxIsRefusedUnderTLS(t *testing.T) {
	leak.Check(t)
	f := &muxListener{Listener: listen(t)}
	far := New(Options{TLS: identity(t)})
	defer far.Close()
	addr, err := far.Serve(f, func(transport.Conn) { t.Error("it was accepted") })
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetReadDeadline(time.Now().Add(waitTime))
	if _, err := nc.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
		t.Errorf("the connection is still open: %v", err)
	}
	if f.closed.Load() != 1 {
		t.Errorf("the front heard of %d Closes, want 1", f.closed.Load())
	}
}

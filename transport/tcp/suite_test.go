package tcp

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/transporttest"
)

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// plain makes n Transports in the same way as a program.
func plain(tb testing.TB, n int) []transporttest.Node {
	return nodes(tb, n, func(l net.Listener) (transport.Transport, net.Listener) { return New(Options{}), l })
}

// secured makes n Transports that demand certificates of each other.
func secured(tb testing.TB, n int) []transporttest.Node {
	o := identity(tb)
	return nodes(tb, n, func(l net.Listener) (transport.Transport, net.Listener) { return New(Options{TLS: o}), l })
}

// secureListener is a listener that does the TLS handshake, like the listener of package mesh. So
// accepted connections are under TLS when the Transport gets them.
type secureListener struct {
	net.Listener
	config *tls.Config
	conns  chan net.Conn
}

// secureListeners makes n Transports with such listeners.
func secureListeners(tb testing.TB, n int) []transporttest.Node {
	o := identity(tb)
	return nodes(tb, n, func(l net.Listener) (transport.Transport, net.Listener) {
		config, err := o.Server(proto)
		if err != nil {
			tb.Fatal(err)
		}
		s := &secureListener{l, config, make(chan net.Conn)}
		go s.handshakes()
		return New(Options{TLS: o}), s
	})
}

// handshakes accepts connections until the listener is closed. Each connection has a goroutine, so
// that a connection that never sends anything does not delay the others.
func (l *secureListener) handshakes() {
	defer close(l.conns)
	var all sync.WaitGroup
	defer all.Wait()
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			tc := tls.Server(&swappable{nc}, l.config)
			nc.SetDeadline(time.Now().Add(waitTime))
			if tc.Handshake() != nil {
				nc.Close()
				return
			}
			nc.SetDeadline(time.Time{})
			l.conns <- peekedTLS{tc, nc}
		})
	}
}

// Accept returns the next connection whose handshake is done.
func (l *secureListener) Accept() (net.Conn, error) {
	if nc, ok := <-l.conns; ok {
		return nc, nil
	}
	return nil, net.ErrClosed
}

// A peekedTLS is a connection of a secureListener.
type peekedTLS struct {
	*tls.Conn
	wire net.Conn
}

func (p peekedTLS) Peeked() []byte    { return nil }
func (p peekedTLS) NetConn() net.Conn { return p.Conn }
func (p peekedTLS) Close() error      { return p.wire.Close() }

// streamed makes n Transports without raw descriptors, as on other systems than Linux.
func streamed(tb testing.TB, n int) []transporttest.Node {
	return nodes(tb, n, func(l net.Listener) (transport.Transport, net.Listener) {
		return portable{New(Options{})}, hiding{l}
	})
}

func nodes(tb testing.TB, n int, mk func(net.Listener) (transport.Transport, net.Listener)) []transporttest.Node {
	all := make([]transporttest.Node, n)
	for i := range all {
		all[i].Transport, all[i].Listener = mk(listen(tb))
	}
	return all
}

// A hidden is a TCP connection that newConn does not recognise, so that it becomes a stream.
type hidden struct{ *net.TCPConn }

type hiding struct{ net.Listener }

func (l hiding) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return hidden{c.(*net.TCPConn)}, nil
}

type portable struct{ *Transport }

func (p portable) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if p.life.Err() != nil {
		return nil, p.dialFailure(ctx, "dial "+addr, 0, p.life.Err())
	}
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, p.dialFailure(ctx, "dial "+addr, 0, err)
	}
	if _, err := nc.Write([]byte(magic)); err != nil {
		return nil, err
	}
	return p.newConn(pendingConn{nc: hidden{nc.(*net.TCPConn)}})
}

func TestContract(t *testing.T)        { transporttest.Run(t, plain) }
func TestContractOverTLS(t *testing.T) { transporttest.Run(t, secured) }
func TestContractTLSByTheListener(t *testing.T) {
	transporttest.Run(t, secureListeners)
}
func TestContractPortable(t *testing.T) { transporttest.Run(t, streamed) }

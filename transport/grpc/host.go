package grpc

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/tutti-go/tutti/transport"
)

// A host is the accepting side's hold on gRPC: a server for one connection, and on
// it for one stream. So Stop ends that connection alone, and what a stranger can
// open is bounded whatever he sends.
type host struct {
	conn   *conn
	accept func(transport.Conn)
	leash  atomic.Pointer[leash] // the context of the one stream; nil until it is opened
	state  atomic.Int32          // waiting, until served or missed: whichever is first
}

const (
	waiting = iota
	served  // the stream's handler has begun
	missed  // the connection has ended before that
)

// A binder is an accepted connection that wants to know that it has become a Conn,
// and what ends that.
type binder interface{ Bind(end func() error) }

// host serves one accepted connection until it has ended.
func (t *Transport) host(raw net.Conn, config *tls.Config, accept func(transport.Conn)) {
	above, state, err := t.welcome(raw, config)
	if err != nil {
		t.log("a stranger at the TLS handshake", err)
		raw.Close()
		return
	}
	h := &host{conn: newConn(raw, above, t.opts.tune), accept: accept}
	c := h.conn
	c.hangUp = h.hangUp
	if !t.keep(c) {
		c.link.cut()
		return
	}
	defer t.forget(c)
	server := rpc.NewServer(append(t.opts.tune.serverOptions(state), rpc.InTapHandle(h.tap))...)
	server.RegisterService(&rpc.ServiceDesc{
		ServiceName: serviceName,
		Streams:     []rpc.StreamDesc{streamDesc(h.serve)},
	}, nil)
	late := time.AfterFunc(t.patience, h.late)
	defer late.Stop()
	go server.Serve(listenOnce(c.link))
	// Stop returns when the connection's reader and writer have (Server.removeConn
	// follows http2Server.HandleStreams, which waits for both).
	c.wind(server.Stop)
	h.leave()
	c.in.rest()
}

// leave waits for the handler, if it has begun. A stream can pass tap and never
// get to its handler: gRPC refuses it for its headers.
func (h *host) leave() {
	l := h.leash.Load()
	if h.state.CompareAndSwap(waiting, missed) {
		if l != nil {
			close(l.gone)
		}
		return
	}
	<-l.gone
}

// hangUp ends the stream's handler, so that gRPC sends the trailers; without a
// stream, the connection.
func (h *host) hangUp() {
	if l := h.leash.Load(); l != nil {
		l.pull()
		return
	}
	h.conn.link.end()
	h.conn.link.cut()
}

// welcome does the TLS handshake, unless whoever listens has done it.
func (t *Transport) welcome(raw net.Conn, config *tls.Config) (net.Conn, *tls.ConnectionState, error) {
	if done := terminated(raw); done != nil {
		state := done.ConnectionState()
		return raw, &state, nil
	}
	if config == nil {
		return raw, nil, nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.patience)
	defer cancel()
	c := tls.Server(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	state := c.ConnectionState()
	return c, &state, nil
}

// late ends a connection on which no stream has been opened in time.
func (h *host) late() {
	if h.state.Load() != served {
		h.conn.link.end()
		h.conn.link.cut()
	}
}

// tap sees each stream before it exists, on gRPC's reader, with gRPC's locks held.
// It lets one pass.
func (h *host) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != methodName {
		return nil, status.Error(codes.Unimplemented, "not a method of this server")
	}
	l := newLeash(ctx)
	if !h.leash.CompareAndSwap(nil, l) {
		return nil, status.Error(codes.ResourceExhausted, "one stream for each connection")
	}
	context.AfterFunc(ctx, l.pull)
	return l, nil
}

// serve is the stream's handler: it hands the Conn over and reads for it. When it
// returns, gRPC sends the trailers behind all messages.
func (h *host) serve(_ any, s rpc.ServerStream) error {
	if !h.state.CompareAndSwap(waiting, served) {
		return nil
	}
	defer close(h.leash.Load().gone)
	c := h.conn
	c.stream = s
	if err := s.SendHeader(nil); err != nil {
		c.link.end()
		return nil
	}
	go c.writeLoop(nil)
	if b, ok := c.link.raw.(binder); ok {
		b.Bind(c.Close)
	}
	h.accept(guest{c})
	c.readLoop()
	<-c.writeEnd
	return nil
}

// A leash is the context of an accepted stream, in place of gRPC's own. When a
// stream or its connection ends, gRPC's server cancels its context, and RecvMsg
// then chooses at random between the cancellation and messages that have arrived
// (recvBufferReader.read). A leash is never cancelled: reel gives its Done one
// value at a time, and only to who is asleep, that is to who has found nothing to
// receive.
type leash struct {
	context.Context // gRPC's, for its values
	done            chan struct{}
	ended           atomic.Bool
	gone            chan struct{} // closed when the stream's handler returns, or will never begin
}

func newLeash(ctx context.Context) *leash {
	return &leash{Context: ctx, done: make(chan struct{}), gone: make(chan struct{})}
}

func (l *leash) Deadline() (time.Time, bool) { return time.Time{}, false }

func (l *leash) Done() <-chan struct{} { return l.done }

func (l *leash) Err() error {
	if l.ended.Load() {
		return context.Canceled
	}
	return nil
}

// pull ends the stream for its handler, once.
func (l *leash) pull() {
	if !l.ended.Swap(true) {
		go l.reel()
	}
}

// reel wakes whoever sleeps in RecvMsg or SendMsg, until the handler has returned.
// That comes soon, or when the Conn's owner has taken what the inbox has no room
// for, or has closed the Conn. A send that does not wait reaches only a receiver
// that sleeps in its select, and select sleeps only when nothing is ready.
func (l *leash) reel() {
	pause := 20 * time.Microsecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case l.done <- struct{}{}:
			continue
		default:
		}
		select {
		case <-l.gone:
			return
		case <-timer.C:
			pause = min(2*pause, 10*time.Millisecond)
			timer.Reset(pause)
		}
	}
}

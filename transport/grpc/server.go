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

// An acceptedStream is the accepting side's part of gRPC: one server for one connection and one
// stream. So Stop ends only that connection, and an unauthenticated peer cannot open more streams.
type acceptedStream struct {
	conn    *conn
	accept  func(transport.Conn)
	context atomic.Pointer[streamContext] // the context of the one stream; nil until it is opened
	state   atomic.Int32                  // first waiting, and then either served or missed
}

const (
	waiting = iota
	served  // the stream's handler has begun
	missed  // the connection has ended before the handler began
)

// A closerSetter is an accepted connection. Its listener closes it if the peer does not
// authenticate in time. SetCloser gives the listener the Conn's Close.
type closerSetter interface{ SetCloser(end func() error) }

// serveConn serves one accepted connection until it has ended.
//
// serveConn returns when gRPC's goroutines for the connection have ended. The Transport's Close
// waits for it. If a peer opens no stream within openTimeout, serveConn cuts the connection.
func (t *Transport) serveConn(raw net.Conn, config *tls.Config, accept func(transport.Conn)) {
	above, state, err := t.handshake(raw, config)
	if err != nil {
		t.log("TLS handshake with an unknown peer failed", err)
		raw.Close()
		return
	}
	h := &acceptedStream{conn: newConn(raw, above, t.opts.tune), accept: accept}
	c := h.conn
	c.hangUp = h.hangUp
	if done := terminated(above); done != nil {
		c.peerName = t.opts.TLS.PeerName(done)
	}
	if !t.register(c) {
		c.link.cut()
		return
	}
	defer t.unregister(c)
	server := rpc.NewServer(append(t.opts.tune.serverOptions(state), rpc.InTapHandle(h.tap))...)
	server.RegisterService(&rpc.ServiceDesc{
		ServiceName: serviceName,
		Streams:     []rpc.StreamDesc{streamDesc(h.serve)},
	}, nil)
	late := time.AfterFunc(t.openTimeout, h.openTimedOut)
	defer late.Stop()
	go server.Serve(listenOnce(c.link))
	// Stop returns when the connection's reader and writer have returned (Server.removeConn follows
	// http2Server.HandleStreams, which waits for both).
	c.awaitEnd(server.Stop)
	h.awaitHandler()
	c.in.awaitReady()
}

// awaitHandler waits for the handler to return, if it has begun. A stream can pass tap without
// reaching its handler, because gRPC refuses its headers.
func (h *acceptedStream) awaitHandler() {
	l := h.context.Load()
	if h.state.CompareAndSwap(waiting, missed) {
		if l != nil {
			close(l.handlerDone)
		}
		return
	}
	<-l.handlerDone
}

// hangUp ends the stream's handler, so that gRPC sends the trailers. Without a stream it ends the
// connection.
func (h *acceptedStream) hangUp() {
	if l := h.context.Load(); l != nil {
		l.end()
		return
	}
	h.conn.link.end()
	h.conn.link.cut()
}

// handshake does the TLS handshake if the TLS options secure this connection, unless the listener
// has done it.
func (t *Transport) handshake(raw net.Conn, config *tls.Config) (net.Conn, *tls.ConnectionState, error) {
	if done := terminated(raw); done != nil {
		state := done.ConnectionState()
		return raw, &state, nil
	}
	if !t.opts.TLS.Secures(raw.LocalAddr(), raw.RemoteAddr()) {
		return raw, nil, nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.openTimeout)
	defer cancel()
	c := tls.Server(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	state := c.ConnectionState()
	return c, &state, nil
}

// openTimedOut ends a connection on which no stream has been opened in time.
func (h *acceptedStream) openTimedOut() {
	if h.state.Load() != served {
		h.conn.link.end()
		h.conn.link.cut()
	}
}

// tap is called for each stream before it exists, on gRPC's reader, with gRPC's locks held. It
// admits the first stream.
//
// gRPC calls it before it allocates anything for the stream. A second stream is refused here, so
// that an unauthenticated peer cannot open many.
func (h *acceptedStream) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != methodName {
		return nil, status.Error(codes.Unimplemented, "not a method of this server")
	}
	l := newStreamContext(ctx)
	if !h.context.CompareAndSwap(nil, l) {
		return nil, status.Error(codes.ResourceExhausted, "one stream for each connection")
	}
	context.AfterFunc(ctx, l.end)
	return l, nil
}

// serve is the stream's handler. It passes the Conn to the function accept, and runs the Conn's
// readLoop. When it returns, gRPC sends the trailers after all messages.
//
// The goroutine that gRPC's server provides for the handler runs readLoop. So an accepted Conn
// needs one goroutine fewer than a dialled Conn.
func (h *acceptedStream) serve(_ any, s rpc.ServerStream) error {
	if !h.state.CompareAndSwap(waiting, served) {
		return nil
	}
	defer close(h.context.Load().handlerDone)
	c := h.conn
	c.stream = s
	if err := s.SendHeader(nil); err != nil {
		c.link.end()
		return nil
	}
	go c.writeLoop(nil)
	if b, ok := c.link.raw.(closerSetter); ok {
		b.SetCloser(c.Close)
	}
	h.accept(pendingConn{c})
	c.readLoop()
	<-c.writeEnd
	return nil
}

// A streamContext is the context of an accepted stream, in place of gRPC's own. When a stream or
// its connection ends, gRPC's server cancels its own context. Then RecvMsg chooses at random
// between the cancellation and messages that have arrived (recvBufferReader.read), so messages
// could be lost. A streamContext is never cancelled. Instead, wakeSleepers sends single values on
// its Done channel. Only a goroutine that waits for this channel gets such a value, and that
// goroutine has found nothing to receive.
type streamContext struct {
	context.Context // gRPC's own context, for its values
	done            chan struct{}
	ended           atomic.Bool
	handlerDone     chan struct{} // closed when the stream's handler returns, or will never begin
}

// newStreamContext returns the context of a stream that tap has admitted.
func newStreamContext(ctx context.Context) *streamContext {
	return &streamContext{Context: ctx, done: make(chan struct{}), handlerDone: make(chan struct{})}
}

// Deadline reports no deadline, because a stream lasts as long as its Conn.
func (l *streamContext) Deadline() (time.Time, bool) { return time.Time{}, false }

func (l *streamContext) Done() <-chan struct{} { return l.done }

// Err returns an error once the stream must end. gRPC calls Err after it has received from Done.
func (l *streamContext) Err() error {
	if l.ended.Load() {
		return context.Canceled
	}
	return nil
}

// end ends the stream for its handler, once.
func (l *streamContext) end() {
	if !l.ended.Swap(true) {
		go l.wakeSleepers()
	}
}

// wakeSleepers wakes the goroutines that sleep in RecvMsg or SendMsg, until the handler has
// returned. The handler returns soon, or once Progress has emptied a full inbox, or the Conn is
// closed. A non-blocking send reaches only a receiver that sleeps in its select. A select sleeps
// only when none of its cases is ready.
func (l *streamContext) wakeSleepers() {
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
		case <-l.handlerDone:
			return
		case <-timer.C:
			pause = min(2*pause, 10*time.Millisecond)
			timer.Reset(pause)
		}
	}
}

package grpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	rpc "google.golang.org/grpc"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// Dial opens a connection that only this Conn uses. So a Conn that stalls blocks no other Conn, and
// the end of the connection is the end of the Conn. Dial returns when the peer's gRPC has answered
// on the stream. The kinds of its errors are fault.Refused (no process listens, or the listener is
// not a rank), fault.Timeout, fault.Canceled, fault.Closed and fault.Misuse (TLS files).
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if !t.enter() {
		return nil, failure(fault.Closed, "dial "+addr, nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	c, err := t.dial(ctx, addr)
	if err == nil {
		return c, nil
	}
	t.work.Done()
	var f *fault.Error
	switch {
	case t.ctx.Err() != nil:
		return nil, failure(fault.Closed, "dial "+addr, nil)
	case errors.As(err, &f):
		return nil, f
	}
	return nil, dialFailure(ctx, addr, err)
}

// dial opens the connection and the stream. On success it starts the Conn's goroutines. The last of
// these goroutines to end also undoes enter, for which Close of the Transport waits.
func (t *Transport) dial(ctx context.Context, addr string) (*conn, error) {
	raw, err := t.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	above, state, err := t.secure(ctx, raw, addr)
	if err != nil {
		raw.Close()
		return nil, err
	}
	c := newConn(raw, above, t.opts.tune)
	c.link.admitted.Store(true) // a dialled peer is not limited
	c.peerName = t.opts.TLS.PeerName(above)
	d := &clientStream{conn: c}
	if err := d.open(ctx, t.opts.tune.dialOptions(addr, c.link, state)); err != nil {
		if f := c.first(); f != nil {
			err = f.Err // the connection's error is more precise than gRPC's
		}
		return nil, err
	}
	if !t.register(c) {
		c.Close()
	}
	t.start(d)
	return c, nil
}

// start starts the Conn's goroutines.
func (t *Transport) start(d *clientStream) {
	c := d.conn
	go func() {
		c.readLoop()
		c.link.end() // the connection had one stream
	}()
	go c.writeLoop(d.stream.CloseSend)
	go func() {
		defer t.work.Done()
		defer t.unregister(c)
		c.awaitEnd(d.stop)
		<-c.writeEnd
		<-c.readEnd
		c.in.awaitReady()
	}()
}

// connect opens the connection below TLS.
func (t *Transport) connect(ctx context.Context, addr string) (net.Conn, error) {
	if t.opts.Dial != nil {
		return t.opts.Dial(ctx, "tcp", addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// secure does the TLS handshake if the TLS options secure this connection. It does so before gRPC
// gets the connection, so that TLS errors can be distinguished from HTTP/2 errors.
func (t *Transport) secure(ctx context.Context, raw net.Conn, addr string) (net.Conn, *tls.ConnectionState, error) {
	if !t.opts.TLS.Secures(raw.LocalAddr(), raw.RemoteAddr()) {
		return raw, nil, nil
	}
	config, err := t.clientTLS()
	if err != nil {
		return nil, nil, err
	}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, nil, err
		}
		config = config.Clone()
		config.ServerName = host
	}
	c := tls.Client(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, fmt.Errorf("TLS handshake: %w", t.opts.TLS.Explain(err))
	}
	state := c.ConnectionState()
	if state.NegotiatedProtocol != t.Proto() {
		return nil, nil, errors.New("TLS handshake: got a server without HTTP/2, want ALPN h2")
	}
	return c, &state, nil
}

// A clientStream is the dialling side's part of gRPC. Its ClientConn serves one stream and never
// reconnects, so that its back-off and load balancing have no effect.
type clientStream struct {
	conn   *conn
	cc     *rpc.ClientConn
	stream rpc.ClientStream
	cancel context.CancelFunc // ends the stream
}

// open passes the connection to gRPC and opens the stream. It leaves nothing behind when it fails.
func (d *clientStream) open(ctx context.Context, options []rpc.DialOption) (err error) {
	// The target is not resolved: the connection exists already.
	if d.cc, err = rpc.NewClient("passthrough:///peer", options...); err != nil {
		d.conn.link.cut()
		return err
	}
	var life context.Context
	life, d.cancel = context.WithCancel(context.Background())
	if err = d.openStream(ctx, life); err != nil {
		d.cancel()
		d.conn.link.cut()
		d.cc.Close()
	}
	return err
}

// openStream opens the stream and waits for the peer's headers, which come before any message.
// After the headers gRPC no longer keeps messages for a retry. ctx bounds the opening. life is the
// context of the stream.
//
// Header waits for the peer's headers. Without this wait, the address of another gRPC server, or of
// a proxy without a backend, would look like a working Conn.
func (d *clientStream) openStream(ctx, life context.Context) (err error) {
	detach := context.AfterFunc(ctx, d.cancel)
	desc := streamDesc(nil)
	if d.stream, err = d.cc.NewStream(life, &desc, methodName); err != nil {
		return err
	}
	d.conn.stream = d.stream
	if head, err := d.stream.Header(); err != nil || head == nil {
		// Header does not return the reason, so RecvMsg must return it.
		return errors.Join(err, d.stream.RecvMsg(new(incoming)))
	}
	if !detach() {
		return ctx.Err()
	}
	return nil
}

// stop ends gRPC on this connection. gRPC's client closes the connection only after its writer has
// returned (http2Client.Close, NewHTTP2Client), so stop waits for the writer. link.cut makes a
// blocked writer return.
func (d *clientStream) stop() {
	d.cancel()
	d.cc.Close()
	<-d.conn.link.closed
}

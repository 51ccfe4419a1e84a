package grpc

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"time"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

const (
	smallSize   = 2 << 10  // initial capacity of the copied part of a message
	messageCost = 128      // added to a message's size in the inbox
	maxInFlight = 8        // messages of one Conn that gRPC may hold unwritten
	headerList  = 16 << 10 // bytes of HTTP headers that a peer may send
)

// tuning holds the sizes, in bytes, that benchmarks vary.
type tuning struct {
	segment int // the maximum number of bytes of a large body in one message
	copied  int // the largest body that is copied into a message
	batch   int // the maximum number of bytes of small frames in one message
	inbox   int // bytes of received messages that may wait for Progress
	window  int // HTTP/2 flow control: bytes that a stream may send before they are read
	write   int // gRPC's write buffer, held only during writes
	read    int // gRPC's read buffer, one for each connection
}

// orDefault returns t with default values for sizes that are zero. The defaults were the fastest in
// measurements; see doc.go.
func (t tuning) orDefault() tuning {
	if t != (tuning{}) {
		return t
	}
	return tuning{
		segment: 512 << 10,
		copied:  8 << 10,
		batch:   32 << 10,
		inbox:   2 << 20,
		window:  4 << 20,
		write:   264 << 10, // one write for a body of 256 KiB with its preamble and framing
		read:    64 << 10,
	}
}

// maxMessage returns the size of the largest message.
func (t tuning) maxMessage() int { return t.batch + t.segment + t.copied + 1<<10 }

// dialOptions returns gRPC's options for one connection that exists already. Windows are static,
// because gRPC's bandwidth estimate costs pings and starts at 64 KiB. Features that need the
// network, or may hold back a stream, are off: service configuration, retries, health checks,
// proxies, and the idle mode.
//
// The authority is the dialled address, because a proxy on the path expects this.
func (t tuning) dialOptions(addr string, c net.Conn, state *tls.ConnectionState) []rpc.DialOption {
	return []rpc.DialOption{
		rpc.WithContextDialer(oneConn(c)),
		rpc.WithTransportCredentials(creds{state: state}),
		rpc.WithAuthority(addr),
		rpc.WithNoProxy(),
		rpc.WithDisableRetry(),
		rpc.WithDisableServiceConfig(),
		rpc.WithDisableHealthCheck(),
		rpc.WithIdleTimeout(0),
		rpc.WithStaticStreamWindowSize(int32(t.window)),
		rpc.WithStaticConnWindowSize(int32(t.window)),
		rpc.WithWriteBufferSize(t.write),
		rpc.WithReadBufferSize(t.read),
		rpc.WithMaxHeaderListSize(headerList),
		rpc.WithDefaultCallOptions(
			rpc.ForceCodecV2(codec{}),
			rpc.MaxCallRecvMsgSize(t.maxMessage()),
			rpc.MaxCallSendMsgSize(math.MaxInt32),
		),
	}
}

// serverOptions returns gRPC's options for one accepted connection.
//
// MaxConcurrentStreams limits a well-behaved client to one stream. The method tap limits every
// client to one stream.
func (t tuning) serverOptions(state *tls.ConnectionState) []rpc.ServerOption {
	return []rpc.ServerOption{
		rpc.Creds(creds{state: state}),
		rpc.ForceServerCodecV2(codec{}),
		rpc.MaxRecvMsgSize(t.maxMessage()),
		rpc.MaxConcurrentStreams(1),
		rpc.MaxHeaderListSize(headerList),
		rpc.StaticStreamWindowSize(int32(t.window)),
		rpc.StaticConnWindowSize(int32(t.window)),
		rpc.WriteBufferSize(t.write),
		rpc.ReadBufferSize(t.read),
		rpc.ConnectionTimeout(defaultOpenTimeout),
		// This end sends no pings. It accepts the pings of a proxy.
		rpc.KeepaliveParams(keepalive.ServerParameters{Time: math.MaxInt64}),
		rpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
}

// oneConn returns a dialer that yields an existing connection once. gRPC must not reconnect,
// because a Conn does not survive its stream.
//
// gRPC calls the dialer again after the connection has ended. The second call fails, which makes
// the stream's error final.
func oneConn(c net.Conn) func(context.Context, string) (net.Conn, error) {
	conns := make(chan net.Conn, 1)
	conns <- c
	return func(context.Context, string) (net.Conn, error) {
		select {
		case c := <-conns:
			return c, nil
		default:
			return nil, errors.New("the connection of this stream has ended")
		}
	}
}

// creds passes the result of the TLS handshake to gRPC. The handshake is done before, because a
// shared listener may do it, and so that its errors have the texts of this package.
type creds struct{ state *tls.ConnectionState }

func (c creds) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, c.info(), nil
}

func (c creds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, c.info(), nil
}

// info describes the security of the connection. gRPC uses this to decide which data may be sent.
func (c creds) info() credentials.AuthInfo {
	if c.state == nil {
		return plain{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}
	}
	return credentials.TLSInfo{State: *c.state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
}

// Info returns the protocol name. gRPC uses the scheme https for "tls".
func (c creds) Info() credentials.ProtocolInfo {
	if c.state == nil {
		return credentials.ProtocolInfo{SecurityProtocol: "insecure"}
	}
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c creds) Clone() credentials.TransportCredentials { return c }

func (c creds) OverrideServerName(string) error { return nil }

// plain is the AuthInfo of a connection without TLS.
type plain struct{ credentials.CommonAuthInfo }

func (plain) AuthType() string { return "insecure" }

package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	beatInterval  = time.Second      // between two heartbeats
	silenceLimit  = 9                // intervals without a byte; longer than comm's 4 s
	sendLimit     = 30               // intervals that the far end has for taking one message on Control
	greetingLimit = 30 * time.Second // for the launcher's greeting and the opening of Control
	closeLimit    = 2 * time.Second  // Close waits this long for the host to end Control
	explainLimit  = 3 * closeLimit   // a host reports the end of its ssh within 2*closeLimit

	maxCommand = 16 << 20  // bytes; an environment has at most 6 MB on Linux, and is sent in base64
	maxEvent   = 256 << 10 // bytes
	maxQueue   = 1 << 14   // messages: several for each of launch.MaxRanks
	eventQueue = 64        // events
	window     = 64 << 10  // HTTP/2 flow control, in bytes, of each stream
	maxStreams = 1 << 16
	headerList = 16 << 10 // bytes
)

const serviceName = "tutti.Remote"

// A method is the name of one of the service's methods.
type method string

const (
	controlMethod method = "Control"
	streamMethod  method = "Stream"
	tunnelMethod  method = "Tunnel"
)

func (m method) path() string { return "/" + serviceName + "/" + string(m) }

// desc returns the method's description for gRPC. The launcher passes no handler.
func (m method) desc(h rpc.StreamHandler) rpc.StreamDesc {
	return rpc.StreamDesc{StreamName: string(m), Handler: h, ServerStreams: true, ClientStreams: true}
}

func serverOptions() []rpc.ServerOption {
	return []rpc.ServerOption{
		rpc.Creds(insecure.NewCredentials()),
		rpc.ForceServerCodecV2(codec{}),
		rpc.MaxRecvMsgSize(maxCommand),
		rpc.MaxConcurrentStreams(maxStreams),
		rpc.MaxHeaderListSize(headerList),
		rpc.StaticStreamWindowSize(window),
		rpc.StaticConnWindowSize(16 * window),
		rpc.KeepaliveParams(keepalive.ServerParameters{Time: math.MaxInt64}),
		rpc.WaitForHandlers(true),
	}
}

func dialOptions(c *conn) []rpc.DialOption {
	return []rpc.DialOption{
		rpc.WithContextDialer(dialOnce(c)),
		rpc.WithTransportCredentials(insecure.NewCredentials()),
		rpc.WithAuthority("host"),
		rpc.WithNoProxy(),
		rpc.WithDisableRetry(),
		rpc.WithDisableServiceConfig(),
		rpc.WithDisableHealthCheck(),
		rpc.WithIdleTimeout(0),
		rpc.WithConnectParams(rpc.ConnectParams{MinConnectTimeout: time.Hour}), // the context of Connect ends it earlier
		rpc.WithStaticStreamWindowSize(window),
		rpc.WithStaticConnWindowSize(16 * window),
		rpc.WithMaxHeaderListSize(headerList),
		rpc.WithDefaultCallOptions(
			rpc.ForceCodecV2(codec{}),
			rpc.MaxCallRecvMsgSize(maxEvent),
			rpc.MaxCallSendMsgSize(maxCommand),
		),
	}
}

// A core holds what both ends of a connection share. The type Send is Command or Event.
type core[Send any] struct {
	conn   *conn
	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // the goroutines of the connection

	mu     sync.Mutex
	queue  []*Send
	closed bool          // send accepts no more messages
	wake   chan struct{} // has an element if the queue may have grown, or closed has changed

	paused atomic.Bool // the launcher is about to stop, so watch counts no intervals

	sends atomic.Uint64 // twice the number of messages sent, plus 1 while one is being sent
}

func newCore[Send any](c *conn) *core[Send] {
	l := &core[Send]{conn: c, wake: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// fail ends the connection for the given reason. Only the first reason counts.
func (l *core[Send]) fail(err error) {
	l.cancel(err)
	l.conn.Close()
}

// send appends a message to the queue. It never blocks. If the queue grows beyond maxQueue, the far
// end does not read, and send fails the connection.
func (l *core[Send]) send(m *Send) error {
	l.mu.Lock()
	full := len(l.queue) >= maxQueue
	ok := !full && !l.closed && l.ctx.Err() == nil
	if ok {
		l.queue = append(l.queue, m)
	}
	l.mu.Unlock()
	if full {
		l.fail(fmt.Errorf("it has left %d messages unread", maxQueue))
	}
	if !ok {
		return errEnded
	}
	l.signal()
	return nil
}

// errEnded is what Send returns after the end of the connection.
var errEnded = errors.New("the connection to the host has ended")

// closeQueue makes sendLoop return once the queue is empty.
func (l *core[Send]) closeQueue() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.signal()
}

func (l *core[Send]) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// pop takes all messages from the queue, and reports whether closeQueue has been called.
func (l *core[Send]) pop() (messages []*Send, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	messages, l.queue = l.queue, nil
	return messages, l.closed
}

// sendLoop sends the messages of the queue, in order, until the queue is closed and empty.
func (l *core[Send]) sendLoop(send func(any) error) {
	for {
		messages, closed := l.pop()
		for _, m := range messages {
			l.sends.Add(1)
			err := send(m)
			l.sends.Add(1)
			if err != nil {
				if err != io.EOF { // the receiver gets the reason
					l.fail(fmt.Errorf("send: %w", err))
				}
				return
			}
		}
		if len(messages) > 0 {
			continue
		}
		if closed {
			return
		}
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			return
		}
	}
}

// watch sends heartbeats, and fails the connection if the far end is silent or does not read. It
// counts intervals instead of time, so that an end that was stopped itself does not blame the other
// end. Every received byte counts as a sign of life, because bytes of streams may delay the far
// end's heartbeats.
//
// A host counts no intervals while the launcher is stopped. A stopped launcher does not read
// either, so after some hours the host's heartbeats fill all buffers of the connection. The host
// must not fail the connection for that.
func (l *core[Send]) watch(beat *Send) {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	var arrived, sends uint64
	for quiet, stuck := 0, 0; ; {
		select {
		case <-l.ctx.Done():
			return
		case <-ticker.C:
		}
		l.beat(beat)
		paused := l.paused.Load()
		if now := l.conn.arrived.Load(); now != arrived || paused {
			quiet, arrived = 0, now
		} else if quiet++; quiet >= silenceLimit {
			l.fail(fmt.Errorf("it has been silent for %v", silenceLimit*beatInterval))
			return
		}
		if now := l.sends.Load(); now != sends || now%2 == 0 || paused {
			stuck, sends = 0, now
		} else if stuck++; stuck >= sendLimit {
			l.fail(fmt.Errorf("it has not read a message for %v", sendLimit*beatInterval))
			return
		}
	}
}

// beat sends a heartbeat, unless the queue holds a message, which serves as one.
func (l *core[Send]) beat(m *Send) {
	l.mu.Lock()
	empty := len(l.queue) == 0
	l.mu.Unlock()
	if empty {
		l.send(m)
	}
}

// reason returns why the connection has ended. The reason of fail comes first, then what the
// starter knows, then what gRPC or the greeting say. It is called after fail.
func (l *core[Send]) reason(err error) error {
	if cause := context.Cause(l.ctx); cause != nil && cause != errDone {
		err = cause
	}
	if e, ok := l.conn.ReadWriteCloser.(explainer); ok {
		err = e.Explain(err)
	}
	if first := l.conn.err.Load(); first != nil && err == errBroken {
		return *first
	}
	if s, ok := status.FromError(err); ok {
		return errors.New(printable(s.Message())) // without the words "rpc error"
	}
	return err
}

var (
	errDone   = errors.New("closed by this end")
	errBroken = fmt.Errorf("the connection has ended: %w", io.ErrUnexpectedEOF)
)

// An explainer is a connection that knows why it has ended, beyond what Read and Write return.
// Explain is called after Close. It returns err if it knows nothing more precise.
type explainer interface{ Explain(err error) error }

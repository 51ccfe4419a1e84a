package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A Link is the launcher's end of a connection to a host. Its methods may be called concurrently.
type Link struct {
	*core[Command]
	name    string // the user's name for the host
	cc      *rpc.ClientConn
	control rpc.ClientStream
	events  chan *Event
	acks    chan struct{} // gets an element when the host answers Pause

	started sync.Map // the numbers of the processes that the host was asked to start

	onClose sync.Once
	closing atomic.Bool   // Close has been called
	done    chan struct{} // closed after err is set
	err     error
}

// Connect connects to the tuttirun remote at the far end of rwc, and compares the versions. The
// parameter name is the user's name for the host. ctx bounds only Connect. If Connect fails, it
// closes rwc and returns an error that names the host.
func Connect(ctx context.Context, name string, rwc io.ReadWriteCloser) (*Link, error) {
	return connect(ctx, name, rwc, ownVersion())
}

func connect(ctx context.Context, name string, rwc io.ReadWriteCloser, version string) (*Link, error) {
	l := &Link{
		core: newCore[Command](newConn(rwc)), name: name,
		events: make(chan *Event, eventQueue), acks: make(chan struct{}, 1), done: make(chan struct{}),
	}
	detach := context.AfterFunc(ctx, func() { l.fail(fmt.Errorf("no answer: %w", context.Cause(ctx))) })
	err := l.open(version)
	if !detach() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.fail(errDone)
		if l.cc != nil {
			l.cc.Close()
		}
		return nil, l.named(l.reason(err))
	}
	if c, ok := rwc.(connected); ok {
		c.Connected()
	}
	l.work.Go(l.receive)
	l.work.Go(func() {
		l.sendLoop(l.control.SendMsg)
		l.control.CloseSend()
	})
	l.work.Go(func() { l.watch(new(Command)) })
	return l, nil
}

// A connected is a connection that must be told when tuttirun has answered.
type connected interface{ Connected() }

var errUnanswered = errors.New("the connection has ended before tuttirun answered")

// open exchanges the greetings and opens Control.
func (l *Link) open(version string) error {
	theirs, err := readGreeting(l.conn)
	if isClosed(err) {
		return errUnanswered
	} else if err != nil {
		return err
	}
	ours := ownGreeting(version)
	if theirs.version != ours.version {
		return fmt.Errorf("its tuttirun has version %s, and the tuttirun on %s has version %s: install the same version on both hosts", theirs.version, ours.host, ours.version)
	}
	if err := ours.write(l.conn); err != nil {
		return err
	}
	if l.cc, err = rpc.NewClient("passthrough:///host", dialOptions(l.conn)...); err != nil {
		return err
	}
	if l.control, err = l.newStream(l.ctx, controlMethod); err != nil {
		return err
	}
	if head, err := l.control.Header(); err != nil || head == nil {
		return errors.Join(err, l.control.RecvMsg(new(Event)))
	}
	return nil
}

func (l *Link) newStream(ctx context.Context, m method) (rpc.ClientStream, error) {
	desc := m.desc(nil)
	return l.cc.NewStream(ctx, &desc, m.path())
}

// receive delivers events until the connection ends, and then closes it. It records no error after
// Close, because then the user has asked for the end.
func (l *Link) receive() {
	err := l.deliver()
	if err == io.EOF {
		err = errors.New("tuttirun remote has ended")
	} else if l.ctx.Err() == nil && l.isBroken() {
		err = errBroken
	}
	l.fail(err)
	l.cc.Close()
	// reason waits for the end of the starter's process, even after Close.
	if err := l.reason(err); !l.closing.Load() {
		l.err = l.named(err)
	}
	close(l.done)
	close(l.events)
}

// isBroken reports whether gRPC has closed the connection. If so, errBroken explains the end better
// than gRPC's error.
func (l *Link) isBroken() bool {
	select {
	case <-l.conn.closed:
		return true
	default:
		return false
	}
}

func (l *Link) deliver() error {
	for {
		e := new(Event)
		if err := l.control.RecvMsg(e); err != nil {
			return err
		}
		switch {
		case *e == Event{}:
		case !l.knows(e):
			n, _ := e.process()
			return fmt.Errorf("got an event of process %d, which this host was not asked to start", n)
		case e.Paused != nil:
			select {
			case l.acks <- struct{}{}:
			default:
			}
		default:
			e.clean()
			select {
			case l.events <- e:
			case <-l.ctx.Done():
				return l.ctx.Err()
			}
		}
	}
}

// knows returns false if an event concerns a process that the host was not asked to start. After
// this check, the launcher can trust the process numbers in events.
func (l *Link) knows(e *Event) bool {
	n, ok := e.process()
	if !ok {
		return true
	}
	_, ok = l.started.Load(n)
	return ok
}

func (l *Link) named(err error) error { return fmt.Errorf("%s: %w", l.name, err) }

// Name returns the name by which the user calls the host.
func (l *Link) Name() string { return l.name }

// Send sends a command, after all earlier ones. It does not block: a host that does not read fails
// the Link. After the end of the Link, Send returns an error.
func (l *Link) Send(c *Command) error {
	if c.Start != nil {
		l.started.Store(c.Start.Process, true)
	}
	return l.send(c)
}

// Events returns the channel of the host's events, in order. It is closed at the end of the Link.
func (l *Link) Events() <-chan *Event { return l.events }

// Err returns why the Link has ended, in one line that names the host. It returns nil before the
// end, and after Close.
func (l *Link) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

// HasEnded reports whether the connection has ended. When the Read of an open stream returns io.EOF
// because the connection has ended, HasEnded already returns true.
func (l *Link) HasEnded() bool { return l.ctx.Err() != nil || l.isBroken() }

// Pause tells the host to tolerate silence, because this process is about to stop itself. The
// command and the answer may take seconds, so Pause waits for the answer as long as the host
// tolerates silence at all. Meanwhile another goroutine must receive the events that come before
// the answer. Resume ends the tolerance.
func (l *Link) Pause() {
	select {
	case <-l.acks: // the late answer to an earlier Pause
	default:
	}
	if l.Send(&Command{Pause: &Pause{Stopped: true}}) != nil {
		return
	}
	select {
	case <-l.acks:
	case <-l.ctx.Done():
	case <-time.After(silenceLimit * beatInterval):
	}
}

// Resume tells the host that this process runs again after a Pause, and that silence is a failure
// again.
func (l *Link) Resume() { l.Send(&Command{Pause: new(Pause)}) }

// Stream opens a stream of a process. The host may see it before or after a command that was sent
// earlier. If the Link has ended, the Conn is closed. Close delivers what was written before. After
// that, at the far end Read returns io.EOF, and Write fails.
func (l *Link) Stream(process int, id StreamID) net.Conn {
	ctx, cancel := context.WithCancel(l.ctx)
	user, inner, detach := pipe(ctx)
	s, err := l.newStream(metadata.AppendToOutgoingContext(ctx, "process", strconv.Itoa(process), "stream", strconv.Itoa(int(id))), streamMethod)
	if err != nil {
		cancel()
		return user
	}
	l.copyBoth(s, nil, inner, func(error) { detach(); cancel() })
	return user
}

// Tunnel asks this Link's host to start tuttirun on a further host. The result is a connection for
// Connect. Lines that ssh prints there to standard error arrive as Notes of this Link. The tunnel
// ends with the Link.
func (l *Link) Tunnel(by *SSH, host, verb string) (io.ReadWriteCloser, error) {
	spec, err := json.Marshal(tunnelSpec{by, host, verb})
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(l.ctx)
	user, inner, detach := pipe(life)
	t := &tunnel{Conn: user, via: l, cancel: cancel, ended: make(chan struct{})}
	s, err := l.newStream(life, tunnelMethod)
	if err != nil {
		cancel()
		return nil, t.throughEnded()
	}
	l.copyBoth(s, &chunk{spec}, inner, func(err error) {
		t.err = err
		detach()
		cancel()
		close(t.ended)
	})
	return t, nil
}

// A tunnel is the launcher's end of a connection that another host has started.
type tunnel struct {
	net.Conn
	via    *Link
	cancel context.CancelFunc // ends the stream
	ended  chan struct{}      // closed after err is set
	err    error              // the error of gRPC
}

// Explain waits for the end of the stream, which Close has initiated. The host that has started the
// connection knows how its ssh has ended, and reports that after 2*closeLimit at the latest; see
// process.Close. If no report comes, Explain ends the stream after explainLimit.
func (t *tunnel) Explain(err error) error {
	late := time.AfterFunc(explainLimit, t.cancel)
	defer late.Stop()
	<-t.ended
	s := status.Convert(t.err)
	if s.Code() == codes.Unavailable {
		await(t.via.ctx.Done()) // gRPC has seen the end of the parent's connection, and the parent's Link is about to see it
	}
	switch {
	case t.via.ctx.Err() != nil:
		return t.throughEnded()
	case s.Code() == codes.Aborted && (errors.Is(err, errUnanswered) || errors.Is(err, errBroken)):
		return errors.New(printable(s.Message()))
	}
	return err
}

func (t *tunnel) throughEnded() error {
	return &ThroughError{t.via.name, "the connection through " + t.via.name + " has ended"}
}

// A ThroughError says that a host is not connected because its parent in the tree, through which it
// would be reached, is not connected. The host itself may be fine.
type ThroughError struct {
	Host string // the parent, as the user calls it
	text string
}

// Error implements error.
func (e *ThroughError) Error() string { return e.text }

// copyBoth copies in both directions, and calls ended with the stream's error. If first is not nil,
// it is sent before the bytes.
func (l *Link) copyBoth(s rpc.ClientStream, first *chunk, inner net.Conn, ended func(error)) {
	go func() {
		if first == nil || s.SendMsg(first) == nil {
			copyOut(s, inner)
		}
		s.CloseSend()
	}()
	go func() { ended(copyIn(s, inner)) }()
}

// Close ends the connection. The host receives the commands that were sent before, and then ends.
// Close waits at most closeLimit for the end of tuttirun remote, and then at most explainLimit for
// the end of the host's starter. All streams end with the Link.
func (l *Link) Close() error {
	l.onClose.Do(func() {
		l.closing.Store(true)
		l.closeQueue()
		late := time.NewTimer(closeLimit)
		defer late.Stop()
		for more := true; more; {
			select {
			case _, more = <-l.events:
			case <-late.C:
				more = false
			}
		}
		l.fail(errDone)
	})
	l.work.Wait()
	return nil
}

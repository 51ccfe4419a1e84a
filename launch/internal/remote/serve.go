package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A CommandHandler carries out the commands of a launcher.
type CommandHandler interface {
	// Command carries out a command. It is called for one command after the other. Serve waits for
	// it, so it must not wait for the launcher, and must return after Sender.Done.
	Command(*Command)
	// Stream gets a stream of a process. It may be called before or after the process's Start. The
	// CommandHandler owns the Conn. Stream must not block.
	Stream(process int, id StreamID, c net.Conn)
	// Tunnels reports whether this host may run the command that a Tunnel names instead of ssh.
	Tunnels() bool
}

// A Sender sends events to the launcher.
type Sender struct{ core *core[Event] }

// Send sends an event, after all earlier ones. It does not block. After the end of the connection
// it returns an error.
func (s *Sender) Send(e *Event) error { return s.core.send(e) }

// Done returns a channel that is closed when the connection has ended. The CommandHandler then ends
// the processes of the job. It must not wait for Serve to return first, because Serve waits for the
// hosts that this host has started.
func (s *Sender) Done() <-chan struct{} { return s.core.ctx.Done() }

// Serve is the host's end of a connection, over the standard input and output of tuttirun remote.
// It calls newHandler when the launcher has opened Control. It returns nil when the launcher has
// closed the Link. It returns an error when the connection has ended for another reason, or is
// silent. By then all Conns and the channel of Sender.Done are closed. Serve closes rwc, whose
// Close must unblock a Read.
func Serve(rwc io.ReadWriteCloser, newHandler func(*Sender) CommandHandler) error {
	return serve(rwc, newHandler, ownVersion())
}

func serve(rwc io.ReadWriteCloser, newHandler func(*Sender) CommandHandler, version string) error {
	s := &server{core: newCore[Event](newConn(rwc)), newHandler: newHandler, ended: make(chan struct{})}
	late := time.AfterFunc(greetingLimit, func() {
		if s.state.CompareAndSwap(waiting, refused) {
			s.fail(errors.New("no launcher has answered: tuttirun remote is started by tuttirun"))
		}
	})
	defer late.Stop()
	if err := s.greet(version); err != nil {
		s.fail(errDone)
		return s.reason(err)
	}
	g := rpc.NewServer(serverOptions()...)
	g.RegisterService(&rpc.ServiceDesc{ServiceName: serviceName, Streams: []rpc.StreamDesc{
		controlMethod.desc(s.control), streamMethod.desc(s.stream), tunnelMethod.desc(s.tunnel),
	}}, nil)
	l := listenOnce(s.conn)
	s.work.Go(func() { g.Serve(l) })
	select {
	case <-s.ended:
	case <-s.conn.closed:
		s.state.CompareAndSwap(waiting, refused)
	}
	// gRPC needs a moment to send the trailers of Control. The launcher closes the connection when it
	// has them.
	if s.clean.Load() {
		await(s.conn.closed)
	}
	s.fail(errDone)
	g.Stop()
	s.work.Wait()
	if s.clean.Load() {
		return nil
	}
	return s.reason(errBroken)
}

// A server is the host's end.
type server struct {
	*core[Event]
	newHandler func(*Sender) CommandHandler
	handler    atomic.Pointer[CommandHandler]
	state      atomic.Int32
	ended      chan struct{} // closed when control has returned
	clean      atomic.Bool   // the launcher has closed Control
}

// The states of a server's Control.
const (
	waiting = iota
	opened
	refused // the connection has ended before Control was opened
)

// greet writes this end's greeting and reads the launcher's.
func (s *server) greet(version string) error {
	ours := ownGreeting(version)
	if err := ours.write(s.conn); err != nil {
		return err
	}
	theirs, err := readGreeting(s.conn)
	if err == nil && theirs.version != ours.version {
		err = fmt.Errorf("the launcher on %s has version %s, want %s", theirs.host, theirs.version, ours.version)
	}
	return err
}

// control is the handler of Control.
func (s *server) control(_ any, stream rpc.ServerStream) error {
	if !s.state.CompareAndSwap(waiting, opened) {
		return status.Error(codes.AlreadyExists, "one Control for each connection")
	}
	defer close(s.ended)
	h := s.newHandler(&Sender{s.core})
	s.handler.Store(&h)
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	sent := make(chan struct{})
	s.work.Go(func() {
		defer close(sent)
		s.sendLoop(stream.SendMsg)
	})
	s.work.Go(func() { s.watch(new(Event)) })
	err := s.commands(stream, h)
	if err != io.EOF {
		return err
	}
	s.closeQueue()
	<-sent
	s.clean.Store(s.ctx.Err() == nil)
	return nil
}

// commands calls the CommandHandler until the launcher closes Control. It then returns io.EOF.
func (s *server) commands(stream rpc.ServerStream, h CommandHandler) error {
	for {
		c := new(Command)
		if err := stream.RecvMsg(c); err != nil {
			return err
		}
		switch {
		case *c == Command{}:
		case c.Pause != nil:
			s.paused.Store(c.Pause.Stopped)
			if c.Pause.Stopped {
				s.send(&Event{Paused: new(Paused)})
			}
		default:
			h.Command(c)
		}
	}
}

// stream is the handler of Stream.
func (s *server) stream(_ any, stream rpc.ServerStream) error {
	h := s.handler.Load()
	process, err := number(stream.Context(), "process")
	id, err2 := number(stream.Context(), "stream")
	if err := errors.Join(err, err2); err != nil || h == nil || id >= int(numStreams) {
		return status.Errorf(codes.InvalidArgument, "stream %d of process %d: %v", id, process, err)
	}
	user, inner, detach := pipe(stream.Context())
	defer detach()
	(*h).Stream(process, StreamID(id), user)
	s.copyBoth(stream, inner)
	return nil
}

// copyBoth copies in both directions until this end or the launcher closes the Conn.
func (s *server) copyBoth(stream rpc.ServerStream, inner net.Conn) {
	s.work.Go(func() { copyIn(stream, inner) })
	copyOut(stream, inner)
}

// A tunnelSpec is the first message of a Tunnel, as JSON. It says which host to start, and how.
type tunnelSpec struct {
	By         *SSH
	Host, Verb string
}

// tunnel is the handler of Tunnel. It returns why the further host's connection has ended.
func (s *server) tunnel(_ any, stream rpc.ServerStream) error {
	if h := s.handler.Load(); h == nil || !(*h).Tunnels() {
		return status.Error(codes.Aborted, "this host starts no further hosts")
	}
	var first chunk
	if err := stream.RecvMsg(&first); err != nil {
		return err
	}
	var spec tunnelSpec
	if json.Unmarshal(first.data, &spec) != nil || spec.By == nil {
		return status.Error(codes.InvalidArgument, "no host for a tunnel")
	}
	spec.By.Log = func(host, line string) { s.send(&Event{Note: &Note{Text: host + ": " + line}}) }
	p, err := spec.By.start(spec.Host, spec.Verb)
	if err != nil {
		return status.Error(codes.Aborted, err.Error())
	}
	defer context.AfterFunc(stream.Context(), func() { p.Close() })()
	s.work.Go(func() { copyIn(stream, tunnelInput{p}) })
	copyOut(stream, p)
	p.Close()
	ended := errBroken
	if !p.isConnected() {
		ended = errUnanswered
	}
	return status.Error(codes.Aborted, p.Explain(ended).Error())
}

// A tunnelInput is the standard input of a tunnel's process. The launcher writes only after it has
// read the greeting of tuttirun on the further host, so the first bytes of the launcher show that
// the process is connected. The launcher closes both directions of the tunnel together. So Close
// ends the whole process, including an ssh that still waits for a host that is gone.
type tunnelInput struct{ *process }

func (t tunnelInput) Write(b []byte) (int, error) {
	t.Connected()
	return t.process.Write(b)
}

// number returns a number in the headers of a stream.
func number(ctx context.Context, key string) (int, error) {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) != 1 {
		return 0, fmt.Errorf("got %d headers %s, want 1", len(values), key)
	}
	n, err := strconv.ParseUint(values[0], 10, 31)
	return int(n), err
}

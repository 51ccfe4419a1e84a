package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tutti-go/tutti/internal/test/leak"
)

// A testHost is a CommandHandler that passes commands and streams to a test.
type testHost struct {
	*Sender
	commands chan *Command
	streams  chan testStream
}

type testStream struct {
	net.Conn
	process int
	id      StreamID
}

func newTestHost() *testHost {
	return &testHost{commands: make(chan *Command, 100), streams: make(chan testStream, 100)}
}

func (h *testHost) handler(s *Sender) CommandHandler {
	h.Sender = s
	return h
}

func (h *testHost) Command(c *Command) { h.commands <- c }

func (h *testHost) Stream(process int, id StreamID, c net.Conn) {
	h.streams <- testStream{c, process, id}
}

func (h *testHost) Tunnels() bool { return true }

// start connects a launcher and a host over a pipe. It returns the launcher's Link, and a channel
// with the result of Serve.
func start(t *testing.T, h *testHost) (*Link, <-chan error) {
	t.Helper()
	ours, theirs := net.Pipe()
	return startOver(t, h, ours, theirs)
}

func startOver(t *testing.T, h *testHost, ours, theirs io.ReadWriteCloser) (*Link, <-chan error) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- Serve(theirs, h.handler) }()
	l, err := Connect(context.Background(), "n1", ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, served
}

func TestCommandsAndEventsArriveUnchangedAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHost()
		l, served := start(t, h)
		commands := []*Command{
			{Prepare: &Prepare{Job: "job-1", Size: 4, Root: true}},
			{Start: &Start{
				Process: 3, Args: Strings{"prog", "a\nb", "", "\xff\x00 'x' \"y\""}, Env: Strings{"A=\xfe", "B= "},
				Dir: "/tmp/\xff", Credentials: []byte{0, 255}, CPUs: []int{0, 2}, Streams: []StreamID{Stdin, PMI},
			}},
			{Signal: &Signal{Process: -1, Signal: 15}},
			{Exited: &Exited{Process: 2}},
		}
		for _, c := range commands {
			if err := l.Send(c); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range commands {
			if got := <-h.commands; !reflect.DeepEqual(got, want) {
				t.Errorf("command %d: got %+v, want %+v", i, got, want)
			}
		}
		events := []*Event{
			{Prepared: &Prepared{Host: "n1", Addresses: []string{"10.0.0.1"}, Port: 7}},
			{Started: &Started{Process: 3, PID: 100, Program: "/bin/\xffprog"}},
			{Ended: &Ended{Process: 3, Status: 9}},
			{Empty: &Empty{}},
		}
		for _, e := range events {
			if err := h.Send(e); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range events {
			if got := <-l.Events(); !reflect.DeepEqual(got, want) {
				t.Errorf("event %d: got %+v, want %+v", i, got, want)
			}
		}
		l.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve after Close: got %v, want nil", err)
		}
		if err := l.Err(); err != nil {
			t.Errorf("Err after Close: got %v, want nil", err)
		}
		if err := l.Send(&Command{Exited: &Exited{Process: 2}}); err == nil {
			t.Error("Send after Close: got no error")
		}
	})
}

// Commands that were sent before Close arrive, although Close follows at once.
func TestCloseDeliversWhatWasSentBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHost()
		l, served := start(t, h)
		for range 50 {
			l.Send(&Command{Grow: &Grow{Size: 9}})
		}
		l.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: got %v, want nil", err)
		}
		if got := len(h.commands); got != 50 {
			t.Errorf("got %d commands, want 50", got)
		}
	})
}

func TestStreamsCarryBytesBothWaysAndEnd(t *testing.T) {
	leak.Check(t)
	for _, hostCloses := range []bool{true, false} {
		t.Run(fmt.Sprintf("host closes %v", hostCloses), func(t *testing.T) {
			h := newTestHost()
			l, _ := start(t, h)
			ours := l.Stream(7, PMI)
			theirs := <-h.streams
			if theirs.process != 7 || theirs.id != PMI {
				t.Errorf("got stream %v of process %d, want PMI of 7", theirs.id, theirs.process)
			}
			var from, to net.Conn = ours, theirs
			if hostCloses {
				from, to = to, from
			}
			data := bytes.Repeat([]byte("0123456789abcdef"), 20_000) // more than the window
			go func() {
				from.Write(data)
				from.Close()
			}()
			got, err := io.ReadAll(to)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("got %d bytes and %v, want %d bytes", len(got), err, len(data))
			}
			if _, err := to.Write([]byte("x")); err == nil {
				t.Error("write to a Conn that the far end has closed: got no error")
			}
			to.Close()
		})
	}
}

// A stream that nobody reads holds up neither commands nor other streams, and its writer waits.
func TestAStreamThatNobodyReadsHoldsUpNothingElse(t *testing.T) {
	leak.Check(t)
	h := newTestHost()
	l, _ := start(t, h)
	for i := range 8 {
		l.Stream(i, Stdout)
		theirs := <-h.streams
		go io.Copy(theirs, endless{}) // ends when the Link ends
	}
	other := l.Stream(100, Stdout)
	theirs := <-h.streams
	go func() {
		theirs.Write([]byte("hello"))
		theirs.Close()
	}()
	if got, err := io.ReadAll(other); string(got) != "hello" || err != nil {
		t.Errorf("got %q and %v, want hello", got, err)
	}
	h.Send(&Event{Empty: &Empty{}})
	if e := <-l.Events(); e == nil || e.Empty == nil {
		t.Errorf("got %+v, want Empty", e)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestTheEndOfTheConnectionIsNamedAtBothEnds(t *testing.T) {
	leak.Check(t)
	h := newTestHost()
	ours, theirs := net.Pipe()
	l, served := startOver(t, h, ours, theirs)
	conn := l.Stream(0, Stdin)
	(<-h.streams).Close()
	stdin := l.Stream(1, Stdin)
	other := <-h.streams
	ours.Close()
	for range l.Events() {
	}
	if err := l.Err(); err == nil || !strings.HasPrefix(err.Error(), "n1: the connection has ended") {
		t.Errorf("Err: got %v, want the end of n1's connection", err)
	}
	if err := <-served; err == nil {
		t.Error("Serve: got nil, want an error")
	}
	for name, c := range map[string]net.Conn{"closed": conn, "launcher's": stdin, "host's": other, "later": l.Stream(2, PMI)} {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("the %s stream after the end: got no error", name)
		}
	}
}

func TestTwoVersionsAreNamed(t *testing.T) {
	leak.Check(t)
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- serve(theirs, newTestHost().handler, "0.0.9/abc/linux") }()
	_, err := connect(context.Background(), "n1", ours, "0.1.0/def/linux")
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"n1: ", "0.0.9/abc/linux", "0.1.0/def/linux", ownGreeting("").host, "install"} {
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %q, want one line with %q", err, want)
		}
	}
	if err := <-served; err == nil {
		t.Error("Serve: got nil, want an error")
	}
	// The host must refuse a launcher of another version, too.
	ours, theirs = net.Pipe()
	go func() { served <- serve(theirs, newTestHost().handler, "1") }()
	readGreeting(ours)
	go greeting{"2", "n0"}.write(ours)
	if err := <-served; err == nil || !strings.Contains(err.Error(), "n0") {
		t.Errorf("Serve: got %v, want an error that names n0", err)
	}
}

// In each case the host lies, stalls or floods. Connect must return an error that names the host.
func TestAHostThatMisbehavesIsNamed(t *testing.T) {
	greet := func(c net.Conn) {
		ownGreeting(ownVersion()).write(c)
		readGreeting(c)
	}
	for name, tt := range map[string]struct {
		host func(c net.Conn)
		want string
	}{
		"says nothing":         {func(net.Conn) {}, "no answer"},
		"ends at once":         {func(c net.Conn) { c.Close() }, "before tuttirun answered"},
		"prints a login text":  {func(c net.Conn) { io.WriteString(c, "Welcome to n1\n") }, `"Welcome to n1"`},
		"prints no line":       {func(c net.Conn) { io.Copy(c, endless{}) }, "want tuttirun's greeting"},
		"ends in its greeting": {func(c net.Conn) { io.WriteString(c, "tutti"); c.Close() }, `after "tutti"`},
		"garbage after it":     {func(c net.Conn) { greet(c); io.Copy(c, endless{}) }, ""},
		"silent after it":      {func(c net.Conn) { greet(c); io.Copy(io.Discard, c) }, "no answer"},
		"stalls after it":      {greet, "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				go tt.host(theirs)
				defer theirs.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := Connect(ctx, "n1", ours)
				if err == nil || !strings.HasPrefix(err.Error(), "n1: ") || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want an error of n1 with %q", err, tt.want)
				}
			})
		})
	}
}

// A network is a connection that can be cut. A cut network loses all bytes, and no side learns that
// the other side has closed the connection.
type network struct{ cut atomic.Bool }

// pipe returns the two ends.
func (n *network) pipe() (net.Conn, net.Conn) {
	ours, a := net.Pipe()
	b, theirs := net.Pipe()
	go n.relay(b, a)
	go n.relay(a, b)
	return ours, theirs
}

func (n *network) relay(to, from net.Conn) {
	buf := make([]byte, 4096)
	for {
		k, err := from.Read(buf)
		switch {
		case n.cut.Load() && err == nil:
		case n.cut.Load():
			return
		case err != nil:
			to.Close()
			return
		default:
			to.Write(buf[:k])
		}
	}
}

func TestSilenceEndsBothEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHost()
		var n network
		ours, theirs := n.pipe()
		l, served := startOver(t, h, ours, theirs)
		// Reason: heartbeats keep a connection that is idle this long, by the bubble's clock.
		time.Sleep(time.Hour)
		if err := l.Err(); err != nil {
			t.Fatalf("an idle connection: got %v", err)
		}
		n.cut.Store(true)
		begin := time.Now()
		for range l.Events() {
		}
		if err := l.Err(); err == nil || !strings.Contains(err.Error(), "n1: it has been silent for 9s") {
			t.Errorf("Err: got %v, want silence of n1", err)
		}
		if err := <-served; err == nil || !strings.Contains(err.Error(), "silent") {
			t.Errorf("Serve: got %v, want silence", err)
		}
		if passed := time.Since(begin); passed < 9*time.Second || passed > 11*time.Second {
			t.Errorf("got the end after %v, want 9 to 11 s", passed)
		}
	})
}

// A gated is a connection that reads and writes nothing while a test holds its gate, as if its
// process were stopped.
type gated struct {
	net.Conn
	gate chan struct{} // capacity 1
}

func (g gated) Read(b []byte) (int, error) {
	g.gate <- struct{}{}
	<-g.gate
	return g.Conn.Read(b)
}

func (g gated) Write(b []byte) (int, error) {
	g.gate <- struct{}{}
	<-g.gate
	return g.Conn.Write(b)
}

// After Pause, a launcher may be silent and read nothing for hours, and its host must wait. In this
// time the host's heartbeats fill the queues of gRPC.
func TestPauseAllowsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHost()
		ours, theirs := net.Pipe()
		gate := make(chan struct{}, 1)
		l, served := startOver(t, h, gated{ours, gate}, theirs)
		l.Pause()
		l.paused.Store(true) // as a stopped process, the Link counts nothing; the host does after Resume
		gate <- struct{}{}
		// Reason: the launcher stays stopped this long, by the bubble's clock.
		time.Sleep(6 * time.Hour)
		<-gate
		l.Resume()
		l.Send(&Command{Exited: &Exited{Process: 2}})
		select {
		case c := <-h.commands:
			if c.Exited == nil {
				t.Errorf("got %+v, want Exited", c)
			}
		case err := <-served:
			t.Fatalf("Serve: got %v during the pause", err)
		}
		gate <- struct{}{}
		if err := <-served; err == nil || !strings.Contains(err.Error(), "silent") {
			t.Errorf("Serve after Resume: got %v, want silence", err)
		}
		<-gate
	})
}

// Pause returns when the host has answered, also if that takes seconds, but not later than the host
// would end anyway.
func TestPauseWaitsForTheAnswer(t *testing.T) {
	for _, delay := range []time.Duration{0, 7 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			gate := make(chan struct{}, 1)
			l, _ := startOver(t, newTestHost(), gated{ours, gate}, theirs)
			synctest.Wait()
			gate <- struct{}{}
			time.AfterFunc(delay, func() { <-gate })
			begin := time.Now()
			l.Pause()
			if got, want := time.Since(begin), min(delay, 9*time.Second); got != want {
				t.Errorf("with an answer after %v: Pause returned after %v, want %v", delay, got, want)
			}
		})
	}
}

// Events that a stopped launcher does not read arrive when it has resumed.
func TestPauseAllowsUnreadEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHost()
		ours, theirs := net.Pipe()
		gate := make(chan struct{}, 1)
		l, _ := startOver(t, h, gated{ours, gate}, theirs)
		l.Pause()
		l.paused.Store(true) // as a stopped process, the Link counts nothing
		gate <- struct{}{}
		const events = 10
		for range events {
			h.Send(&Event{Note: &Note{Text: strings.Repeat("x", maxEvent/2)}})
		}
		// Reason: the launcher stays stopped this long, by the bubble's clock.
		time.Sleep(10 * time.Minute)
		<-gate
		l.Resume()
		for i := range events {
			if e := <-l.Events(); e == nil {
				t.Fatalf("got %d events and %v, want %d", i, l.Err(), events)
			}
		}
	})
}

// A host that does not read commands ends the Link, although neither end is silent.
func TestAMessageThatIsNotReadEndsTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		h := &blockedHost{began: make(chan struct{}, 1), release: make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- Serve(theirs, func(*Sender) CommandHandler { return h }) }()
		l, err := Connect(t.Context(), "n1", ours)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		c := l.Stream(0, Stdin)
		var work sync.WaitGroup
		work.Go(func() {
			for _, err := c.Write([]byte("x")); err == nil; _, err = c.Write([]byte("x")) {
				// Reason: the writer is slow, by the bubble's clock.
				time.Sleep(time.Second)
			}
		})
		for range 3 {
			l.Send(&Command{Start: &Start{Credentials: make([]byte, 1<<20)}})
		}
		for range l.Events() {
		}
		if err := l.Err(); err == nil || !strings.Contains(err.Error(), "n1: it has not read a message for 30s") {
			t.Errorf("Err: got %v, want that n1 does not read", err)
		}
		if passed := time.Since(begin); passed < 30*time.Second || passed > 32*time.Second {
			t.Errorf("got the end after %v, want 30 to 32 s", passed)
		}
		close(h.release)
		<-served
		l.Close()
		work.Wait()
	})
}

// startWithTunnel connects to n1 over a pipe, whose Tunnel has another handler. The function end ends
// the connection.
func startWithTunnel(t *testing.T, ours, theirs net.Conn, tunnel func(rpc.ServerStream)) (via *Link, end func()) {
	t.Helper()
	s := &server{core: newCore[Event](newConn(theirs)), newHandler: newTestHost().handler, ended: make(chan struct{})}
	g := rpc.NewServer(serverOptions()...)
	g.RegisterService(&rpc.ServiceDesc{ServiceName: serviceName, Streams: []rpc.StreamDesc{
		controlMethod.desc(s.control),
		tunnelMethod.desc(func(_ any, stream rpc.ServerStream) error {
			tunnel(stream)
			return nil
		}),
	}}, nil)
	go func() {
		s.greet(ownVersion())
		g.Serve(listenOnce(s.conn))
	}()
	via, err := Connect(t.Context(), "n1", ours)
	if err != nil {
		t.Fatal(err)
	}
	return via, func() {
		via.Close()
		s.fail(errDone)
		g.Stop()
	}
}

// A host on the way that never reports the end of its ssh does not hold up the launcher.
func TestATunnelThatNeverEndsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		l, end := startWithTunnel(t, ours, theirs, func(stream rpc.ServerStream) { <-stream.Context().Done() })
		defer end()
		rwc, err := l.Tunnel(new(SSH), "n2", "remote")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		late := time.AfterFunc(time.Hour, func() {
			t.Error("Connect still waits after an hour")
			l.fail(errDone)
		})
		defer late.Stop()
		if _, err := Connect(ctx, "n2", rwc); err == nil || !strings.HasPrefix(err.Error(), "n2: no answer") {
			t.Errorf("got %v, want no answer of n2", err)
		}
		if err := l.Err(); err != nil {
			t.Errorf("the host on the way: got %v, want no error", err)
		}
	})
}

// gRPC may notice the end of the connection to the host on the way before the Link to that host
// does.
func TestATunnelWaitsForTheEndOfItsLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		via := &Link{core: newCore[Command](newConn(ours)), name: "n1"}
		tun := &tunnel{via: via, cancel: func() {}, ended: make(chan struct{}), err: status.Error(codes.Unavailable, "EOF")}
		close(tun.ended)
		time.AfterFunc(closeLimit/2, func() { via.fail(errBroken) })
		var through *ThroughError
		if err := tun.Explain(errBroken); !errors.As(err, &through) || through.Host != "n1" {
			t.Errorf("got %v, want the end of the connection through n1", err)
		}
	})
}

// When a host on the way falls silent, so do the hosts below it, because their messages pass
// through it. Only the host on the way is blamed.
func TestTheSilenceOfAHostOnTheWayIsNotThatOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		ours, theirs := n.pipe()
		served := make(chan error, 1)
		via, end := startWithTunnel(t, ours, theirs, func(stream rpc.ServerStream) {
			stream.RecvMsg(new(chunk)) // the tunnelSpec
			inner, below := net.Pipe()
			go func() { served <- Serve(below, newTestHost().handler) }()
			go copyIn(stream, inner)
			copyOut(stream, inner)
		})
		defer end()
		rwc, err := via.Tunnel(new(SSH), "n2", "remote")
		if err != nil {
			t.Fatal(err)
		}
		below, err := Connect(t.Context(), "n2", rwc)
		if err != nil {
			t.Fatal(err)
		}
		defer below.Close()
		n.cut.Store(true)
		for range below.Events() {
		}
		var through *ThroughError
		if err := below.Err(); !errors.As(err, &through) || err.Error() != "n2: the connection through n1 has ended" {
			t.Errorf("the host below: got %v, want the end of the connection through n1", err)
		}
		for range via.Events() {
		}
		if err := via.Err(); err == nil || err.Error() != "n1: it has been silent for 9s" {
			t.Errorf("the host on the way: got %v, want its silence", err)
		}
		if err := <-served; err == nil {
			t.Error("Serve: got nil, want an error")
		}
	})
}

func TestServeGivesUpWithoutALauncher(t *testing.T) {
	for name, launcher := range map[string]func(c net.Conn){
		"silent":     func(c net.Conn) { io.Copy(io.Discard, c) },
		"no Control": func(c net.Conn) { readGreeting(c); ownGreeting(ownVersion()).write(c); io.Copy(io.Discard, c) },
		"ends":       func(c net.Conn) { readGreeting(c); c.Close() },
		"garbage":    func(c net.Conn) { readGreeting(c); io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); io.Copy(io.Discard, c) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer ours.Close()
				go launcher(ours)
				if err := Serve(theirs, newTestHost().handler); err == nil {
					t.Error("got nil, want an error")
				}
			})
		})
	}
}

// A host that reads no commands must not make Send wait, nor use memory without a bound.
func TestAHostThatReadsNothingEndsTheLink(t *testing.T) {
	leak.Check(t)
	release := make(chan struct{})
	h := &blockedHost{began: make(chan struct{}, 3*maxQueue), release: release}
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(theirs, func(*Sender) CommandHandler { return h }) }()
	l, err := Connect(context.Background(), "n1", ours)
	if err != nil {
		t.Fatal(err)
	}
	big := &Command{Start: &Start{Credentials: make([]byte, 64<<10)}}
	var n int
	for n = 0; n < 3*maxQueue; n++ {
		if err = l.Send(big); err != nil {
			break
		}
	}
	if err == nil {
		t.Errorf("got no error after %d commands", n)
	}
	for range l.Events() {
	}
	if err := l.Err(); err == nil || !strings.Contains(err.Error(), "n1: it has left") {
		t.Errorf("Err: got %v, want that n1 does not read", err)
	}
	close(release)
	<-served
	l.Close()
}

type blockedHost struct{ began, release chan struct{} }

func (h *blockedHost) Command(*Command) {
	h.began <- struct{}{}
	<-h.release
}

func (h *blockedHost) Stream(_ int, _ StreamID, c net.Conn) {
	go io.Copy(io.Discard, c)
}

func (h *blockedHost) Tunnels() bool { return true }

// Done tells a host of the end of the connection, although Serve still waits for a command to
// return.
func TestDoneDoesNotWaitForServe(t *testing.T) {
	leak.Check(t)
	h := &blockedHost{began: make(chan struct{}, 1), release: make(chan struct{})}
	ours, theirs := net.Pipe()
	served, senders := make(chan error, 1), make(chan *Sender, 1)
	go func() {
		served <- Serve(theirs, func(s *Sender) CommandHandler {
			senders <- s
			return h
		})
	}()
	l, err := Connect(context.Background(), "n1", ours)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Send(&Command{Grow: new(Grow)})
	<-h.began
	ours.Close()
	<-(<-senders).Done()
	select {
	case err := <-served:
		t.Errorf("Serve: got %v before Command has returned", err)
	default:
	}
	close(h.release)
	if err := <-served; err == nil {
		t.Error("Serve: got nil, want an error")
	}
}

func TestALargeEventEndsTheLink(t *testing.T) {
	leak.Check(t)
	h := newTestHost()
	l, served := start(t, h)
	h.Send(&Event{Note: &Note{Text: strings.Repeat("x", maxEvent+1)}})
	for e := range l.Events() {
		t.Errorf("got %v, want no event", e)
	}
	if err := l.Err(); err == nil || !strings.HasPrefix(err.Error(), "n1: ") || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("Err: got %v, want the size of n1's message", err)
	}
	if err := <-served; err == nil {
		t.Error("Serve: got nil, want an error")
	}
}

// The launcher prints texts of events to a terminal, so the texts must contain nothing that the
// terminal could take for a command.
func TestTextsOfEventsArePrintable(t *testing.T) {
	leak.Check(t)
	h := newTestHost()
	l, _ := start(t, h)
	l.Send(&Command{Start: new(Start)})
	const bad = "\x1b]0;a\a\u009b\u202eb\r\x7f\tö\n"
	const want = "]0;ab\tö"
	for i, e := range []*Event{
		{Note: &Note{Text: bad}},
		{StartFailed: &StartFailed{Text: bad}},
		{Leftover: &Leftover{Names: Strings{bad}}},
		{Prepared: &Prepared{Failed: bad}},
	} {
		h.Send(e)
		var got string
		switch e := <-l.Events(); {
		case e == nil:
			t.Fatal(l.Err())
		case e.Note != nil:
			got = e.Note.Text
		case e.StartFailed != nil:
			got = e.StartFailed.Text
		case e.Leftover != nil:
			got = e.Leftover.Names[0]
		case e.Prepared != nil:
			got = e.Prepared.Failed
		}
		if got != want {
			t.Errorf("event %d: got %q, want %q", i, got, want)
		}
	}
}

// The launcher uses the numbers of processes as indexes of a list, so a host must not send a number
// that the launcher has not assigned.
func TestAnEventOfAProcessThatWasNotStartedEndsTheLink(t *testing.T) {
	leak.Check(t)
	for name, e := range map[string]*Event{
		"started":      {Started: &Started{Process: 4}},
		"start failed": {StartFailed: &StartFailed{Process: -1}},
		"init":         {Init: &Init{Process: 1 << 40}},
		"ended":        {Ended: &Ended{Process: 4}},
		"group gone":   {GroupGone: &GroupGone{Process: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost()
			l, _ := start(t, h)
			l.Send(&Command{Start: &Start{Process: 3}})
			h.Send(&Event{Started: &Started{Process: 3}})
			if got := <-l.Events(); got == nil || got.Started == nil || got.Started.Process != 3 {
				t.Fatalf("got %+v, want that process 3 has started", got)
			}
			h.Send(e)
			for got := range l.Events() {
				t.Errorf("got %+v, want no event", got)
			}
			n, _ := e.process()
			want := fmt.Sprintf("n1: got an event of process %d, which this host was not asked to start", n)
			if err := l.Err(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add([]byte("tuttirun-remote 0.1.0/abc/linux n1\n"))
	f.Add([]byte("Welcome\n"))
	f.Add(bytes.Repeat([]byte("a"), maxGreeting+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		g, err := readGreeting(r)
		if read := len(b) - r.Len(); read > maxGreeting {
			t.Fatalf("read %d bytes, want at most %d", read, maxGreeting)
		}
		if err != nil {
			return
		}
		var again bytes.Buffer
		g.write(&again)
		if got, err := readGreeting(&again); err != nil || got != g {
			t.Fatalf("got %v and %v, want %v", got, err, g)
		}
	})
}

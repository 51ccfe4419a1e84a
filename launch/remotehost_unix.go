//go:build unix

package launch

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// connectLimit bounds the time until a host has answered. answerLimit bounds the time of each later
// answer, to Prepare and Start. Heartbeats are not enough to detect such a failure: a host whose
// file system hangs still sends them.
const (
	connectLimit = 2 * time.Minute
	answerLimit  = 2 * time.Minute
)

// lostLimit is longer than the time until an unresponsive host is lost: up to 10 s of silence, and
// up to 4 s for the end of its ssh. A job on several hosts waits this long after KILL. So a process
// that is left after lostLimit has survived KILL, and does not belong to a host that is about to be
// lost.
const lostLimit = 16 * time.Second

// A remoteHost is another host. Its methods send commands to tuttirun remote there. The answers are
// events, which the goroutine in Run receives; it owns the fields. After the end of the connection
// the methods do nothing.
type remoteHost struct {
	hostName string         // as the user wrote it
	first    remote.Prepare // the first command
	link     *remote.Link   // nil until the host has answered
	lost     error          // why the connection has ended, or could not be made; nil before
	known    bool           // other hosts can look up the name; set only if rank 0's listener is there
	prepared bool           // the host has answered Prepare, and can run ranks
	cpus     []cpu.Thread   // the host's processors, once it has answered Prepare
	failures int            // how often the connection to the host was lost before
	own      string         // the local address at which a host that joined later reaches the launcher; set before the host's first event

	streams []remote.StreamID // the streams of the process that is about to start
	starts  int               // the number of Start commands so far
	asked   int               // how many Prepare and Start commands are unanswered
	until   time.Duration     // when the host counts as lost if commands are still unanswered
	empty   int               // the value of starts at which the host had no process left
	names   []string          // the processes that were left in the last report; nil before the first report
	inits   map[int]initState
}

// isUp reports whether the host can run ranks now.
func (h *remoteHost) isUp() bool { return h.prepared && h.lost == nil }

// expect records that a Prepare or a Start was sent, which the host must answer within limit.
func (h *remoteHost) expect(now, limit time.Duration) {
	h.asked, h.until = h.asked+1, max(h.until, now+limit)
}

// answered records that the host has answered a Prepare or a Start.
func (h *remoteHost) answered(now time.Duration) {
	h.asked, h.until = max(h.asked-1, 0), now+answerLimit
}

// overdueAt returns the time at which the host counts as lost if it has not answered by then. It
// returns the constant never if no command is unanswered, or if the host is lost already.
func (h *remoteHost) overdueAt() time.Duration {
	if h.asked == 0 || h.lost != nil {
		return never
	}
	return h.until
}

// A hostEvent is an input from another host. Exactly one field besides host is set.
type hostEvent struct {
	host  *remoteHost
	link  *remote.Link // the host has answered
	event *remote.Event
	err   error // the connection could not be made, or has ended
}

// serve sends all events of the host to events, until the connection ends. It ends the connection
// when ctx ends. If there is no connection, link is nil and err is the reason.
func (h *remoteHost) serve(ctx context.Context, link *remote.Link, err error, events chan<- hostEvent, over <-chan struct{}) {
	send := func(e hostEvent) {
		e.host = h
		select {
		case events <- e:
		case <-over:
		}
	}
	if err != nil {
		send(hostEvent{err: err})
		return
	}
	defer link.Close()
	defer context.AfterFunc(ctx, func() { link.Close() })()
	if h.first.Root && !h.first.Alone {
		h.known = isKnown(ctx, h.hostName)
	}
	send(hostEvent{link: link})
	for e := range link.Events() {
		send(hostEvent{event: e})
	}
	if err := link.Err(); err != nil {
		send(hostEvent{err: err})
	}
}

// send sends a command. It ignores the error of a Link that has ended, because the end of the Link
// is an event, too.
func (h *remoteHost) send(c *remote.Command) {
	if h.lost == nil && h.link != nil {
		h.link.Send(c)
	}
}

func (h *remoteHost) open(process, id int) (stream, error) {
	if h.lost != nil {
		return nil, h.lost
	}
	h.streams = append(h.streams, streamOf(id))
	conn := h.link.Stream(process, streamOf(id))
	if id == 1 || id == 2 {
		return &farTail{Conn: conn, host: h, ended: h.link.HasEnded}, nil
	}
	return conn, nil
}

// streamOf returns the StreamID of the stream that localHost identifies by this file descriptor. It
// is the inverse of descriptor.
func streamOf(id int) remote.StreamID {
	switch id {
	case pmiFD:
		return remote.PMI
	case storeFD:
		return remote.Store
	}
	return remote.StreamID(id)
}

func (h *remoteHost) name() string { return h.hostName }

func (h *remoteHost) part() string { return h.first.Job }

func (h *remoteHost) inherit(int, int, *os.File) bool { return false }

func (h *remoteHost) grow(n int) { h.send(&remote.Command{Grow: &remote.Grow{Size: n}}) }

func (h *remoteHost) died(process int) {
	h.send(&remote.Command{Exited: &remote.Exited{Process: process}})
}

func (h *remoteHost) signal(process int, s syscall.Signal) {
	h.send(&remote.Command{Signal: &remote.Signal{Process: process, Signal: s}})
}

func (h *remoteHost) signalAll(s syscall.Signal, detached bool) {
	h.send(&remote.Command{Signal: &remote.Signal{Process: -1, Signal: s, Detached: detached}})
}

func (h *remoteHost) calledInit(process int) initState { return h.inits[process] }

func (h *remoteHost) start(s *spec) (int, *startError) {
	if h.lost != nil {
		return 0, &startError{exitNotRunning, "ranks on " + h.lost.Error()}
	}
	dir, err := filepath.Abs(s.dir) // as mpirun does
	if err != nil {
		return 0, &startError{exitNotRunning, err.Error()}
	}
	h.starts++
	h.send(&remote.Command{Start: &remote.Start{
		Process: s.process, Args: s.args, Dir: remote.Text(dir), Env: s.env, Credentials: s.credentials,
		Listener: s.listener, Streams: h.streams, Merge: s.merge, CPUs: s.cpus, Program: s.preloaded,
	}})
	h.streams = nil
	return 0, nil
}

// left returns the processes that the host has last reported as left. Before the first report, it
// returns one empty name, which stands for any processes that may be left.
func (h *remoteHost) left() (names []string) {
	switch {
	case h.lost != nil || h.starts == h.empty:
		return nil
	case h.names == nil:
		return []string{""}
	}
	for _, name := range h.names {
		names = append(names, name+" on "+h.hostName)
	}
	return names
}

// handle updates the fields by an event of the host.
func (h *remoteHost) handle(e *remote.Event) {
	switch {
	case e.Init != nil:
		h.inits[e.Init.Process] = initCalled
	case e.GroupGone != nil:
		h.inits[e.GroupGone.Process] = initNever
	case e.Leftover != nil:
		h.names = e.Leftover.Names
	case e.Empty != nil:
		h.empty = e.Empty.Starts
	}
}

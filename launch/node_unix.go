//go:build unix

package launch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// serveNode carries out the commands of a launcher on another host. It is the program tuttirun
// remote. It returns when the launcher has ended the connection, or has been silent for too long;
// see remote.Serve. By then no process of the job is left, and the programs that the launcher has
// sent are removed. The parameter guardian is as in Job, and limits may be nil.
func serveNode(rwc io.ReadWriteCloser, guardian string, limits *nodeLimits) error {
	n := &node{
		guardian: guardian, limits: limits, commands: make(chan *remote.Command), conns: make(chan nodeConn),
		inits: make(map[int]initState), streams: make(map[streamKey]*nodeStream),
		preload: preloadDir{incoming: make(chan net.Conn, 1)},
	}
	done := make(chan struct{})
	err := remote.Serve(rwc, func(events *remote.Sender) remote.CommandHandler {
		n.events = events
		go func() {
			defer close(done)
			n.run()
		}()
		return n
	})
	if n.events != nil {
		<-done
	}
	return errors.Join(err, n.leftover)
}

// nodeLimits are the limits that tuttirun agent sets for tuttirun remote.
type nodeLimits struct {
	ranks int         // how many processes may run at once
	log   *lineWriter // gets a line for each process that begins, for the agent's log
}

// remoteMain runs the program "tuttirun remote", and returns its exit code. Under ssh its standard
// error goes to the launcher. Under tuttirun agent its standard error goes to the agent's log, and
// its arguments are "--max-ranks N".
func remoteMain(args []string, stderr *os.File) int {
	log := &lineWriter{w: stderr}
	var limits *nodeLimits
	if len(args) > 0 {
		limits = &nodeLimits{log: log}
		if _, err := fmt.Sscanf(strings.Join(args, " "), "--max-ranks %d", &limits.ranks); err != nil {
			log.logf("remote: got %q, want no arguments", args)
			return exitUsage
		}
	}
	conn, err := remote.Stdio()
	if err == nil {
		err = serveNode(conn, self(), limits)
	}
	if err != nil {
		log.logf("remote: %v", err)
		return exitNotRunning
	}
	return 0
}

// A node runs the processes of a job on this host for a launcher on another host. The goroutine in
// run owns the fields, except for the channels. It never waits for the launcher: events are queued.
type node struct {
	guardian string
	limits   *nodeLimits // nil if there are none
	events   *remote.Sender
	commands chan *remote.Command
	conns    chan nodeConn

	local   *localHost // nil before Prepare
	starts  int        // the number of Start commands so far
	running int        // how many processes run
	inits   map[int]initState
	left    []string // the processes that the launcher has been told are left; nil before it has been told
	streams map[streamKey]*nodeStream

	preload  preloadDir
	programs []remote.Preload // in preload
	leftover error            // why preload could not be removed
}

// A streamKey names a stream of a process.
type streamKey struct {
	process int
	id      remote.StreamID
}

// A nodeStream holds the two ends that copyStream joins. Either end may be known first.
type nodeStream struct {
	ours stream   // the pipe to the process
	conn net.Conn // the connection to the launcher
}

// A nodeConn is a connection that the launcher has opened for a stream.
type nodeConn struct {
	streamKey
	conn net.Conn
}

// Command implements remote.CommandHandler.
func (n *node) Command(c *remote.Command) {
	select {
	case n.commands <- c:
	case <-n.events.Done():
	}
}

// Stream implements remote.CommandHandler.
func (n *node) Stream(process int, id remote.StreamID, c net.Conn) {
	if id == remote.Programs {
		n.preload.offer(c)
		return
	}
	select {
	case n.conns <- nodeConn{streamKey{process, id}, c}:
	case <-n.events.Done():
		c.Close()
	}
}

// Tunnels implements remote.CommandHandler. A Tunnel runs any command. Under tuttirun agent that
// could bypass the agent's bound on ranks and its log, so Tunnels returns false there. Agents need
// no Tunnels, because the launcher connects to each agent itself.
func (n *node) Tunnels() bool { return n.limits == nil }

// run handles commands and the ends of processes until the connection has ended. It then kills what
// is left of the job.
func (n *node) run() {
	tick := time.NewTicker(absentPoll)
	defer tick.Stop()
	for {
		var exits chan exit
		if n.local != nil {
			exits = n.local.exits
		}
		select {
		case c := <-n.commands:
			n.handle(c)
		case c := <-n.conns:
			n.join(c.streamKey, nil, c.conn)
		case e := <-exits:
			n.local.received(e)
			n.running--
			n.events.Send(&remote.Event{Ended: &remote.Ended{Process: e.process, Status: uint32(e.status), Joined: e.joined}})
		case <-tick.C:
		case <-n.events.Done():
			n.end()
			return
		}
		n.look()
	}
}

// end kills what is left of the job, removes the programs that the launcher has copied to this
// host, stops the starter and the guardian, and closes the streams.
func (n *node) end() {
	if n.local == nil {
		return
	}
	killJob(n.local.job, n.local.groups())
	n.leftover = n.preload.remove()
	n.local.close()
	for _, s := range n.streams {
		if s.ours != nil {
			s.ours.Close()
		}
	}
}

// handle carries out a command.
func (n *node) handle(c *remote.Command) {
	switch {
	case c.Prepare != nil && n.local == nil:
		n.prepare(c.Prepare)
	case n.local == nil:
	case c.Start != nil:
		n.start(c.Start)
	case c.Signal != nil && c.Signal.Process < 0:
		n.local.signalAll(c.Signal.Signal, c.Signal.Detached)
	case c.Signal != nil:
		n.local.signal(c.Signal.Process, c.Signal.Signal)
	case c.Exited != nil:
		n.local.died(c.Exited.Process)
	case c.Grow != nil:
		n.local.grow(c.Grow.Size)
	}
}

func (n *node) prepare(c *remote.Prepare) {
	p := &remote.Prepared{CPUs: cpu.Topology()}
	p.Host, _ = os.Hostname()
	if c.Job == "" {
		n.events.Send(&remote.Event{Prepared: p}) // the launcher asks only for the processors
		return
	}
	n.local = newLocalHost(c.Job, c.Size)
	n.local.begin(n.guardian, func(err error) {
		n.events.Send(&remote.Event{Note: &remote.Note{Text: noGuardian(err)}})
	})
	// sshd sets SSH_CONNECTION to the client's address and port, and the server's address and port.
	if f := strings.Fields(os.Getenv("SSH_CONNECTION")); len(f) == 4 {
		p.Reached = f[2]
	}
	if c.Root {
		var addr netip.AddrPort
		var err error
		if n.local.listener, addr, err = listen(c.Alone, c.Ports); err != nil {
			p.Failed = err.Error()
		}
		p.Addresses, p.Port = []string{addr.Addr().String()}, int(addr.Port())
	}
	n.answer(c, p)
}

func (n *node) start(c *remote.Start) {
	n.starts++
	n.left = nil
	s := &spec{
		process: c.Process, program: n.preload.program(c.Program, n.programs), args: c.Args, env: c.Env, dir: string(c.Dir),
		credentials: c.Credentials, listener: c.Listener, merge: c.Merge, cpus: c.CPUs,
	}
	for _, id := range c.Streams {
		ours, err := n.local.open(c.Process, descriptor(id))
		if err != nil {
			n.failed(c.Process, startFailure(s.args[0], "", err))
			return
		}
		n.join(streamKey{c.Process, id}, ours, nil)
	}
	if n.limits != nil && n.running >= n.limits.ranks {
		n.failed(c.Process, &startError{exitNotRunning,
			fmt.Sprintf("%s: the agent there allows %d ranks of a job (--max-ranks)", s.args[0], n.limits.ranks)})
		return
	}
	pid, err := n.local.start(s)
	if err != nil {
		n.failed(c.Process, err)
		return
	}
	n.running++
	if n.limits != nil {
		n.limits.log.logf("process %d of %s is %d, %s", c.Process, n.local.job, pid, s.program)
	}
	n.events.Send(&remote.Event{Started: &remote.Started{Process: c.Process, PID: pid, Program: remote.Text(s.program)}})
}

func (n *node) failed(process int, err *startError) {
	n.local.process(process).closeFiles()
	n.events.Send(&remote.Event{StartFailed: &remote.StartFailed{Process: process, Code: err.code, Text: err.text}})
}

// descriptor returns the file descriptor by which localHost identifies a stream of a process. It is
// the inverse of streamOf.
func descriptor(id remote.StreamID) int {
	switch id {
	case remote.PMI:
		return pmiFD
	case remote.Store:
		return storeFD
	}
	return int(id)
}

// join records one end of a stream: ours is the end at the process, and conn the end at the
// launcher. One of the two is nil. Once both ends are known, join starts copyStream.
func (n *node) join(key streamKey, ours stream, conn net.Conn) {
	s := n.streams[key]
	if s == nil {
		s = new(nodeStream)
		n.streams[key] = s
	}
	if ours != nil {
		s.ours = ours
	}
	if conn != nil {
		s.conn = conn
	}
	if s.ours != nil && s.conn != nil {
		go copyStream(key.id, s.ours, s.conn)
	}
}

// copyStream copies between a process and the launcher until one of them ends the stream.
func copyStream(id remote.StreamID, ours stream, conn net.Conn) {
	defer ours.Close()
	defer conn.Close()
	switch id {
	case remote.Stdin:
		io.Copy(ours, conn)
	case remote.Stdout, remote.Stderr:
		io.Copy(conn, ours)
	default:
		go func() {
			defer ours.Close()
			io.Copy(ours, conn)
		}()
		io.Copy(conn, ours)
	}
}

// finish ends the output streams after the time killAfter. No process of the job is left at that
// point, but a process that has detached itself from the job may still hold a stream open. The
// launcher waits for the end of each stream, so finish must end it.
func (n *node) finish() {
	var tails []*tail
	for _, s := range n.streams {
		if t, ok := s.ours.(*tail); ok {
			tails = append(tails, t)
		}
	}
	time.AfterFunc(killAfter, func() {
		for _, t := range tails {
			t.finish()
		}
	})
}

// look checks for changes of which this host gets no event, and reports them to the launcher: which
// processes have called Init, and which processes are left once all started processes have ended.
func (n *node) look() {
	if n.local == nil || n.starts == 0 {
		return
	}
	for process := range n.local.processes {
		s := n.local.calledInit(process)
		if s == n.inits[process] {
			continue
		}
		n.inits[process] = s
		if s == initCalled {
			n.events.Send(&remote.Event{Init: &remote.Init{Process: process}})
		} else {
			n.events.Send(&remote.Event{GroupGone: &remote.GroupGone{Process: process}})
		}
	}
	if n.running > 0 {
		return
	}
	left := append([]string{}, n.local.left()...) // not nil
	switch {
	case n.left != nil && slices.Equal(left, n.left):
	case len(left) == 0:
		n.finish()
		n.events.Send(&remote.Event{Empty: &remote.Empty{Starts: n.starts}})
	default:
		n.events.Send(&remote.Event{Leftover: &remote.Leftover{Names: left[:min(len(left), maxNames+1)]}})
	}
	n.left = left
}

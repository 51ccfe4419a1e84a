package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/auto"
	"github.com/tutti-go/tutti/transport/memory"
)

// Local runs f on n ranks that are goroutines of this process, and waits until all have returned.
// It is meant for tests, for learning, and for programs that share memory anyway.
//
//	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
//	sum := []int{c.Rank()}
//	return comm.AllReduce(ctx, c, sum, comm.Sum)
//	})
//
// When f returns nil, Local closes the rank with Comm.Close. An error or a panic of one rank ends
// the job, and Local returns it. If several ranks fail, Local prefers an error that is not a
// consequence of another rank's failure. The context of f ends when another rank fails.
// runtime.Goexit, which t.FailNow calls, counts as an error.
//
// By default the ranks exchange messages in memory. If an option names another transport, such as
// WithTransportName("tcp"), that transport carries them, and each rank has a listener on loopback.
func Local(n int, f func(ctx context.Context, c *Comm) error, opts ...Option) error {
	o := newOptions(opts)
	if err := o.check(-1); err != nil {
		return err
	}
	if n < 1 || n > maxLocal {
		return fault.New(fault.Misuse, "local", 0, "ranks: got %d, want 1 to %d", n, maxLocal)
	}
	l := &local{n: n, o: o, f: f, hub: memory.New()}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	defer l.cancel(nil)
	if err := l.setUp(); err != nil {
		return err
	}
	for r := range n {
		l.ranks.Go(func() { l.rank(r) })
	}
	l.ranks.Wait()
	return l.err
}

// maxLocal bounds the ranks of one process: each has a mesh with its goroutines and links.
const maxLocal = 1024

// local is one run of Local. Its ranks share the hub of the memory transport, or, over another
// transport, a listener each on loopback.
type local struct {
	n      int
	o      *options
	f      func(context.Context, *Comm) error
	hub    *memory.Hub
	cfgs   []mesh.Config
	wires  []transport.Transport // made in the ranks' order, which is that of the hub's addresses
	ctx    context.Context
	cancel context.CancelCauseFunc
	ranks  sync.WaitGroup

	mu  sync.Mutex // guards err
	err error      // of the rank that failed first
}

// setUp makes every rank's transport, and its listener and the address of rank 0 where the
// transport needs them.
func (l *local) setUp() error {
	l.cfgs = make([]mesh.Config, l.n)
	// Without a certain transport the ranks hand messages over in memory, and dial each other
	// by addresses of the hub.
	inMemory := l.o.transportName() == auto.Name || l.o.transport == memory.Name
	if inMemory {
		l.o.transport = memory.Name
	}
	peers := make([]string, l.n)
	for r := range peers {
		peers[r] = l.hub.Addr(r)
	}
	for r := range l.cfgs {
		t, err := l.o.wire(auto.Options{Hub: l.hub, Rank: r})
		if err != nil {
			l.tearDown()
			return err
		}
		l.wires = append(l.wires, t)
		cfg := &l.cfgs[r]
		*cfg = mesh.Config{Rank: r, Size: l.n, Job: "local/" + l.hub.ID(), Secret: l.o.secret, InProcess: true, Host: hostName()}
		if inMemory {
			cfg.Peers = peers
			continue
		}
		// Another transport is used as between processes: each rank listens, and finds the
		// others by rank 0.
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			l.tearDown()
			return fault.New(fault.Refused, "local", r, "listen on loopback: %w", err)
		}
		cfg.Listener = listener
		cfg.Root = l.cfgs[0].Listener.Addr().String()
	}
	return nil
}

// tearDown releases what setUp made before it failed.
func (l *local) tearDown() {
	for r, t := range l.wires {
		t.Close()
		if in := l.cfgs[r].Listener; in != nil {
			in.Close()
		}
	}
}

// hostName is the name of this host in errors and in the layout of ranks.
func hostName() string {
	h, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return h
}

// rank runs one rank from its start to its Close. Its deferred Close also runs when f ends by
// Goexit.
func (l *local) rank(r int) {
	c, err := start(l.ctx, l.o, l.wires[r], l.cfgs[r])
	if err != nil {
		l.setError(err)
		return
	}
	// This error holds if f never returns: then only deferred functions still run.
	err = fault.New(fault.Misuse, "local", r, "the function of this rank ended by runtime.Goexit, as t.FailNow does; return an error instead")
	defer func() { l.closeRank(c, err) }()
	err = l.runProgram(c)
}

// closeRank closes a rank whose f has returned err. An error aborts the job first, so that
// ranks that wait for this one end.
func (l *local) closeRank(c *Comm, err error) {
	if err == nil {
		if err = c.Close(l.ctx); err != nil {
			l.setError(err)
		}
		return
	}
	l.setError(err)
	c.Abort(err)
	c.Close(l.ctx)
}

// runProgram calls f, and turns a panic into an error; its stack is printed once.
func (l *local) runProgram(c *Comm) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("rank %d panicked: %v", c.Rank(), v)
			fmt.Fprintf(os.Stderr, "tutti: %v\n\n%s", err, debug.Stack())
		}
	}()
	return l.f(l.ctx, c)
}

// setError stores the first error. A later error replaces the stored one if the stored error only
// reports another rank's failure and the later one does not.
func (l *local) setError(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first || isConsequence(l.err) && !isConsequence(err) {
		l.err = err
	}
	l.mu.Unlock()
	if first {
		l.cancel(err)
	}
}

// isConsequence reports whether an error reports another rank's failure.
func isConsequence(err error) bool {
	return errors.Is(err, fault.PeerLost) || errors.Is(err, fault.Revoked) || errors.Is(err, fault.Closed) || errors.Is(err, context.Canceled)
}

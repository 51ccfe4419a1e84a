package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"github.com/tutti-go/tutti/fault"
)

// Local runs f on n ranks, which are goroutines of this process, and waits until every f has
// returned. It is meant for tests, for learning, and for programs that share memory anyway.
//
//	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
//		sum := []int{c.Rank()}
//		return comm.AllReduce(ctx, c, sum, comm.Sum)
//	})
//
// When f returns nil, Local closes the rank with Comm.Close. An error or a panic of one rank ends
// the job, and Local returns it. If several ranks fail, Local prefers an error that is not a
// consequence of another rank's failure. The context of f ends when another rank fails.
// runtime.Goexit, which t.FailNow calls, counts as an error.
//
// By default the ranks exchange messages in memory. If an option names another transport, such as
// WithTransportName("tcp"), that transport carries the messages, and each rank listens on loopback.
// Local reads no environment variables: TUTTI_TRANSPORT and the other variables listed at Option
// apply to Init only.
func Local(n int, f func(ctx context.Context, c *Comm) error, opts ...Option) error {
	o := newOptions(opts)
	if err := o.check(-1); err != nil {
		return err
	}
	if n < 1 || n > maxLocal {
		return fault.New(fault.Misuse, "local", 0, "ranks: got %d, want 1 to %d", n, maxLocal)
	}
	l := &local{o: o, f: f}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	defer l.cancel(nil)
	if err := l.setUp(n); err != nil {
		return err
	}
	for r := range n {
		l.ranks.Go(func() { l.rank(r) })
	}
	l.ranks.Wait()
	return l.err
}

// maxLocal bounds the ranks of one process, because each rank has a mesh with goroutines and links.
const maxLocal = 1024

// local is one run of Local.
type local struct {
	o       *options
	f       func(context.Context, *Comm) error
	members []*member
	ctx     context.Context
	cancel  context.CancelCauseFunc
	ranks   sync.WaitGroup

	mu  sync.Mutex // guards err
	err error      // the error that Local returns; see setError
}

// setUp makes the members of the job.
func (l *local) setUp(n int) error {
	wires, err := l.o.newLocalWires(n, l.o.tls)
	if err != nil {
		return err
	}
	root := ""
	for r := range n {
		m, e := wires.localMember(r, l.o, root)
		l.members = append(l.members, m)
		err = cmp.Or(err, e)
		root = m.cfg.Root
	}
	if err != nil {
		for _, m := range l.members {
			m.close()
		}
	}
	return err
}

// hostName returns the name of this host for errors and for the layout of ranks.
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
	c, err := l.members[r].start(l.ctx, l.o)
	if err != nil {
		l.setError(err)
		return
	}
	// This error remains if f never returns, because runtime.Goexit runs only deferred functions.
	err = fault.New(fault.Misuse, "local", r, "the function of this rank ended by runtime.Goexit, which t.FailNow also calls; return an error instead")
	defer func() { l.closeRank(c, err) }()
	err = l.runProgram(c)
}

// closeRank closes a rank whose f has returned err. If err is not nil, closeRank aborts the job
// first, so that ranks that wait for this rank end.
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

// runProgram calls f, and converts a panic into an error. It also prints the panic with its stack.
func (l *local) runProgram(c *Comm) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("rank %d panicked: %v", c.Rank(), v)
			fmt.Fprintf(os.Stderr, "tutti: %v\n\n%s", err, debug.Stack())
		}
	}()
	return l.f(l.ctx, c)
}

// setError stores the first error. A later error replaces it in one case: the stored error only
// reports another rank's failure, and the later error does not.
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

// isConsequence reports whether an error only reports another rank's failure.
func isConsequence(err error) bool {
	return errors.Is(err, fault.PeerLost) || errors.Is(err, fault.Revoked) || errors.Is(err, fault.Closed) || errors.Is(err, context.Canceled)
}

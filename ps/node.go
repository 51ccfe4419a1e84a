package ps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/assign"
)

// Tags of messages.
const (
	tagRequest = iota
	tagRequestBody
	tagReply
	tagReplyBody
	tagClock
	tagPeer
	tagPeerBody
	tagTransfer
)

// A node is what the Client and the Server of a rank share.
type node struct {
	c       *comm.Comm // its ranks name the members in all epochs
	workers *comm.Comm // nil if this rank does not work
	opts    options
	timeout time.Duration // of c; 0: none
	members []member      // by rank of c
	pool    *pool
	rec     *recorder // nil without a timeline

	// ctx ends when the node ends. It is the context of all goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	client *Client // nil if this rank does not work
	server *Server // nil if this rank does not serve

	mu    sync.Mutex // guards epoch
	epoch *epoch     // only watch replaces it
}

// A member is a rank as all ranks know it.
type member struct {
	id     uint64 // the random number of a client
	works  bool
	serves bool
}

// record is what each rank sends to all ranks when it connects: its roles and client id, and the
// options on which all ranks must agree.
type record [7]uint64

const (
	recordID = iota
	recordRoles
	recordPart
	recordCredit
	recordLost
	recordReplicas
	recordVersion
)

// agreed lists the fields that must be the same on all ranks, with their names in errors.
var agreed = []struct {
	field int
	name  string
}{
	{recordVersion, "version of the protocol"},
	{recordPart, "WithPart"},
	{recordCredit, "WithCredit"},
	{recordLost, "WithLostWorkers"},
	{recordReplicas, "WithReplicas"},
}

// Bits of recordRoles.
const (
	roleWorker = 1 << iota
	roleServer
	recordsTimeline
)

// protocolVersion is that of package message.
const protocolVersion = 2

// newNode connects the ranks of c. It is collective.
func newNode(ctx context.Context, c *comm.Comm, works, serves bool, opts []Option) (*node, error) {
	const op = "ps connect"
	if c == nil {
		return nil, fault.New(fault.Misuse, op, -1, "communicator: got nil, want one")
	}
	o, err := newOptions(c, opts)
	if err != nil {
		return nil, err
	}
	dup, err := c.Dup(ctx)
	if err != nil {
		return nil, err
	}
	n := &node{c: dup, opts: *o, timeout: dup.Bridge().Timeout(), pool: &pool{limit: int64(o.credit)}}
	if n.rec, err = newRecorder(dup.WorldRank(dup.Rank())); err != nil {
		o.log.Warn("tutti: ps: the timeline is not written: " + err.Error())
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.epoch = n.newEpoch(dup, nil)
	if err := n.join(ctx, works, serves); err != nil {
		n.cancel()
		dup.Close(ctx)
		return nil, err
	}
	if serves {
		n.server = newServer(n)
	}
	if works {
		n.client = newClient(n)
	}
	n.start()
	return n, nil
}

// join exchanges the records of all ranks, and makes the communicator of the workers.
func (n *node) join(ctx context.Context, works, serves bool) error {
	const op = "ps connect"
	all := make([]uint64, len(record{})*n.c.Size())
	mine := record{recordID: rand.Uint64() | 1, recordPart: uint64(n.opts.part), recordCredit: uint64(n.opts.credit),
		recordLost: uint64(n.opts.lost), recordReplicas: uint64(n.opts.replicas), recordVersion: protocolVersion}
	color := comm.Undefined
	if works {
		mine[recordRoles] |= roleWorker
		color = 0
	}
	if serves {
		mine[recordRoles] |= roleServer
	}
	if n.rec != nil {
		mine[recordRoles] |= recordsTimeline
	}
	if err := comm.AllGather(ctx, n.c, all, comm.From(mine[:])); err != nil {
		return err
	}
	workers, servers := 0, 0
	var recording []int
	for r := range n.c.Size() {
		rec := record(all[r*len(record{}):])
		for _, f := range agreed {
			if first := all[f.field]; rec[f.field] != first {
				return fault.New(fault.Mismatch, op, n.worldRank(n.c.Rank()), "%s: got %d on rank %d and %d on rank %d, want the same on all ranks",
					f.name, first, n.worldRank(0), rec[f.field], n.worldRank(r))
			}
		}
		m := member{id: rec[recordID], works: rec[recordRoles]&roleWorker != 0, serves: rec[recordRoles]&roleServer != 0}
		n.members = append(n.members, m)
		if rec[recordRoles]&recordsTimeline != 0 {
			recording = append(recording, r)
		}
		if m.works {
			workers++
		}
		if m.serves {
			servers++
		}
	}
	if workers == 0 || servers == 0 {
		return fault.New(fault.Misuse, op, n.worldRank(n.c.Rank()), "ranks: got %d workers and %d servers, want at least one of each", workers, servers)
	}
	if err := n.compareClocks(ctx, recording); err != nil {
		return err
	}
	var err error
	n.workers, err = n.c.Split(ctx, color, 0)
	return err
}

func (n *node) worldRank(r int) int { return n.c.WorldRank(r) }

// servers returns the ranks that serve in the present epoch, in ascending order. The first one is the
// lead.
func (n *node) servers() []int {
	e := n.present()
	var ranks []int
	for r, m := range n.members {
		if m.serves && e.has(r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// clientRanks returns the ranks that work, in ascending order.
func (n *node) clientRanks() []int {
	var ranks []int
	for r, m := range n.members {
		if m.works {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// assignable returns the members of the present epoch for the assignment of parts.
func (n *node) assignable() []assign.Member {
	e := n.present()
	var members []assign.Member
	for r, m := range n.members {
		if e.has(r) {
			members = append(members, assign.Member{Rank: r, Host: strconv.Itoa(n.c.Layout().HostOf(r)), Works: m.works, Serves: m.serves})
		}
	}
	return members
}

// start starts the goroutines.
func (n *node) start() {
	if n.server != nil {
		n.server.start()
	}
	if n.client != nil {
		n.client.start()
	}
	if n.replicated() {
		n.tasks.Go(n.watch)
	}
}

// stop ends all goroutines and releases the communicators.
func (n *node) stop() error {
	n.cancel()
	n.tasks.Wait()
	e := n.present()
	e.tasks.Wait()
	if n.server != nil && n.server.reported != nil {
		select {
		case <-n.server.reported:
		case <-time.After(reportLimit): // its writer blocks
		}
	}
	if n.rec != nil {
		if err := n.rec.write(n.worldRank(n.c.Rank())); err != nil {
			n.opts.log.Warn("tutti: ps: the timeline is not written: " + err.Error())
		}
	}
	err := n.c.Close(context.Background())
	if e.c != n.c {
		err = cmp.Or(err, e.c.Close(context.Background()))
	}
	if n.workers != nil {
		err = cmp.Or(err, n.workers.Close(context.Background()))
	}
	return err
}

// waitContext returns ctx, with the communicator's Timeout if it has no deadline.
func (n *node) waitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); !limited && n.timeout > 0 {
		return context.WithTimeout(ctx, n.timeout)
	}
	return ctx, func() {}
}

// waitError returns the error of a wait that the end of ctx has ended.
func (n *node) waitError(op string, ctx context.Context) error {
	return &fault.Error{Kind: fault.ContextKind(ctx.Err()), Op: op, Rank: n.worldRank(n.c.Rank()), Err: ctx.Err()}
}

// waitSame waits for an earlier call of the same kind, which closes over, and returns its error. Only
// ctx bounds the wait.
func (n *node) waitSame(ctx context.Context, op string, over <-chan struct{}, err *error) error {
	select {
	case <-over:
		return *err
	default:
	}
	select {
	case <-over:
		return *err
	case <-ctx.Done():
		return n.waitError(op, ctx)
	}
}

// withOp returns err as the error of a call.
func (n *node) withOp(op string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return &fault.Error{Kind: fault.Closed, Op: op, Rank: n.worldRank(n.c.Rank()), Err: err}
	}
	out := *f
	out.Op, out.Rank = op, n.worldRank(n.c.Rank())
	return &out
}

// Connect makes this rank a worker; with AlsoServe, it serves, too. It is collective over c: every
// rank calls Connect, NewServer, Serve or Run. The caller closes the Client.
func Connect(ctx context.Context, c *comm.Comm, opts ...Option) (*Client, error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	n, err := newNode(ctx, c, true, o.alsoServe, opts)
	if err != nil {
		return nil, err
	}
	return n.client, nil
}

// NewServer makes this rank a server; see Connect. The caller calls Server.Serve.
func NewServer(ctx context.Context, c *comm.Comm, opts ...Option) (*Server, error) {
	n, err := newNode(ctx, c, false, true, opts)
	if err != nil {
		return nil, err
	}
	return n.server, nil
}

// Serve makes this rank a server, and serves until every worker has closed its Client.
func Serve(ctx context.Context, c *comm.Comm, opts ...Option) error {
	s, err := NewServer(ctx, c, opts...)
	if err != nil {
		return err
	}
	return s.Serve(ctx)
}

// A Placement says which ranks work and which serve.
type Placement struct {
	name  string
	roles func(c *comm.Comm) (works, serves bool, err error)
}

// Servers makes the last k ranks serve, and all others work.
func Servers(k int) Placement {
	return Placement{fmt.Sprintf("Servers(%d)", k), func(c *comm.Comm) (works, serves bool, err error) {
		if k < 1 || k >= c.Size() {
			return false, false, fmt.Errorf("got %d servers of %d ranks, want 1 to %d", k, c.Size(), c.Size()-1)
		}
		serves = c.Rank() >= c.Size()-k
		return !serves, serves, nil
	}}
}

// Everywhere makes every rank work and serve.
func Everywhere() Placement {
	return Placement{"Everywhere()", func(*comm.Comm) (works, serves bool, err error) { return true, true, nil }}
}

// ByRole makes the ranks serve whose Comm.Role is "ps" or "server". Ranks with another role work.
func ByRole() Placement {
	return Placement{"ByRole()", func(c *comm.Comm) (works, serves bool, err error) {
		switch c.Role() {
		case "":
			return false, false, errors.New("got no role, want one; start the programs with tuttirun --role, TF_CONFIG or DMLC_ROLE")
		case "evaluator":
			return false, false, errors.New("got the role evaluator, which is a job of its own; look at Comm.Role before Run")
		case "ps", "server":
			return false, true, nil
		}
		return true, false, nil
	}}
}

// Run calls worker on the ranks that work, and server on those that only serve. It is collective
// over c. When worker returns, Run closes the Client. After an error of worker, Run does not wait for
// pulls, and waits at most a second for pushes. If server is nil, those ranks call
// Server.Serve.
func Run(ctx context.Context, c *comm.Comm, p Placement, worker func(context.Context, *Client) error, server func(context.Context, *Server) error, opts ...Option) error {
	const op = "ps run"
	if c == nil || p.roles == nil || worker == nil {
		return fault.New(fault.Misuse, op, -1, "arguments: got a nil communicator, no placement or no worker, want all three")
	}
	works, serves, err := p.roles(c)
	if err != nil {
		return fault.New(fault.Misuse, op, c.WorldRank(c.Rank()), "%s: %w", p.name, err)
	}
	n, err := newNode(ctx, c, works, serves, opts)
	if err != nil {
		return err
	}
	if !works {
		if server == nil {
			return n.server.Serve(ctx)
		}
		return errors.Join(server(ctx, n.server), n.server.Serve(ctx))
	}
	if err := worker(ctx, n.client); err != nil {
		n.client.abandon()
		return err
	}
	return n.client.Close(ctx)
}

// String returns the call that made the Placement: "Servers(2)".
func (p Placement) String() string { return p.name }

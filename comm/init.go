package comm

import (
	"context"
	"fmt"
	"os"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/auto"
	"github.com/tutti-go/tutti/transport/memory"
)

// Init makes this process a rank of its job and returns the communicator of all ranks. It waits
// until all ranks have called Init. Init reads this process's rank and the addresses of the others
// from the environment: TUTTI_* variables (as tuttirun sets them), torchrun's variables, TF_CONFIG,
// PMI and PMIx, or a static list of hosts. Without any of these the job has one rank. ctx bounds
// Init only, and not later calls.
//
// Init takes these steps. An error of one rank in any of them ends Init on all ranks, which
// name that rank:
//
//  1. Find the job in the environment, and complete the options by it.
//  2. Listen, make the transport, and join the mesh: every rank opens control links.
//  3. Receive rank 0's table of algorithms, and exchange hosts and racks.
//  4. Agree on the transports between the ranks, and map shared memory where all can.
//
// A process may be one rank of one job at a time. Errors are *fault.Error: Misuse for options,
// Refused for an environment that names no valid job or a peer that fails the handshake,
// Timeout, which names the ranks that never came.
func Init(ctx context.Context, opts ...Option) (*Comm, error) {
	o := newOptions(opts)
	if ctx == nil {
		return nil, fault.New(fault.Misuse, "init", -1, "context: got nil, want one; context.Background() waits without a limit")
	}
	if o.invalid != nil {
		return nil, o.invalid
	}
	job, err := bootstrap.Find(bootstrap.Options{Secret: o.secret, Insecure: o.insecure, Listen: o.listen})
	if err != nil {
		return nil, err
	}
	o.applyEnvironment(job)
	for _, warning := range job.Warnings {
		o.log.Warn("tutti: " + warning)
	}
	if err := o.check(job.Rank); err != nil {
		return nil, err
	}
	t, err := o.wire(auto.Options{})
	if err != nil {
		return nil, err
	}
	// A wrong name of a transport is an error also in a job of one rank, which needs none.
	if job.Size == 1 {
		t.Close()
		return singleRank(ctx, o, job)
	}
	l, err := job.Listen(ctx)
	if err != nil {
		t.Close()
		return nil, err
	}
	return start(ctx, o, t, mesh.Config{
		Rank: job.Rank, Size: job.Size, Job: job.Name, Incarnation: job.Incarnation, Secret: job.Secret,
		Listener: l, Root: job.Root, Peers: job.Peers, Host: job.Host,
	})
}

// singleRank makes a job of one rank. Nobody dials it, so it needs no transport: a message to
// itself never leaves the matching table. Collectives run their algorithms for one rank, which
// move nothing.
func singleRank(ctx context.Context, o *options, job *bootstrap.Job) (*Comm, error) {
	hub := memory.New()
	return start(ctx, o, hub.Transport(), mesh.Config{Size: 1, Job: job.Name, Peers: []string{hub.Addr(0)}, Host: job.Host, InProcess: true})
}

// applyEnvironment takes settings from the environment where the program gave none. The program's
// options take precedence, because the program may depend on them.
func (o *options) applyEnvironment(job *bootstrap.Job) {
	if o.transport == "" {
		o.transport = job.Transport
	}
	if o.algorithm == "" {
		o.algorithm = job.Algorithm
	}
	if o.tuning == "" {
		o.tuning = job.Tuning
	}
	if o.rack == "" {
		o.rack = job.Rack
	}
	if o.topology == "" {
		o.topology = job.Topology
	}
	if !o.timeoutSet && job.TimeoutSet {
		o.timeout = job.Timeout
	}
	o.report = o.report || job.ReportTransport
}

// A wrapper returns a transport that wraps t. Tests use it to inject faults.
type wrapper func(rank int, t transport.Transport) transport.Transport

// wire makes the transport that the options name. The caller closes it unless it is handed on
// to start.
func (o *options) wire(a auto.Options) (transport.Transport, error) {
	a.TLS, a.Wires = o.tls, o.wires
	return auto.New(o.transportName(), a)
}

// transportName returns the name of the transport to use: the requested name, else the name of the
// only Transport of WithTransport, else auto.Name.
func (o *options) transportName() string {
	switch {
	case o.transport != "":
		return o.transport
	case len(o.wires) == 1 && o.wires[0] != nil:
		return o.wires[0].Name()
	}
	return auto.Name
}

// start joins the job that cfg describes, over t, and makes its communicator. It takes ownership of
// t and the listener, and closes them if it fails. The order of its steps matters. The engine must
// exist before the mesh, because the mesh may deliver messages as soon as it has a link. The runtime
// must have its mesh before any communicator exists.
func start(ctx context.Context, o *options, t transport.Transport, cfg mesh.Config) (*Comm, error) {
	// A fault injector of a test lies between the mesh and the transport.
	if o.wrap != nil {
		t = o.wrap(cfg.Rank, t)
	}
	if _, limited := ctx.Deadline(); !limited && o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.timeout, errTimeout)
		defer cancel()
	}
	if o.tls != nil {
		var err error
		if cfg.TLS, err = o.tls.Server("tutti/1", "h2"); err != nil {
			t.Close()
			if cfg.Listener != nil {
				cfg.Listener.Close()
			}
			return nil, err
		}
	}
	rt := &rankRuntime{
		opt: o, wire: t, rank: cfg.Rank, size: cfg.Size, log: o.log, initGoroutine: callsite.Goroutine(),
		comms: make(map[uint64]*Comm), lostRanks: make(map[int]error),
	}
	// The context of Init ends with Init; that of the runtime ends with Close.
	rt.ctx, rt.cancel = context.WithCancel(context.Background())
	rt.eng = rendezvous.New(rendezvous.Config{
		Rank: cfg.Rank, Size: cfg.Size, Credit: o.params.Credit, Threshold: o.params.Threshold, SendBuffer: o.params.SendBuffer,
		StepBytes: o.params.StepBytes, Static: o.params.StaticTensors, Protocol: protocols()[o.params.Protocol], Checksum: o.params.Checksums, Log: o.log,
	})
	cfg.Transport, cfg.BodySums, cfg.Log, cfg.Events, cfg.Data = t, o.params.Checksums, o.log, rt, rt.eng
	cfg.Heartbeat, cfg.Silence, cfg.StartWarning = o.heartbeat, o.silence, o.stallWarning
	m, err := mesh.Start(ctx, cfg)
	if err != nil {
		rt.cancel()
		return nil, err
	}
	// From here on an error must reach the other ranks, which have joined: abortInit sends it.
	rt.setMesh(m)
	return rt.newJobComm(ctx)
}

// newJobComm makes the job's communicator, with the table of algorithms that rank 0 broadcasts and
// the places that all ranks exchange.
func (rt *rankRuntime) newJobComm(ctx context.Context) (*Comm, error) {
	ranks := make([]int, rt.size)
	for i := range ranks {
		ranks[i] = i
	}
	// The new communicator itself carries the table and the places. Until they arrive, it uses the
	// default table, which all ranks have.
	c := newComm(rt, jobCommID, ranks, rt.rank, collective.DefaultTable())
	table, err := rt.broadcastTable(ctx, c)
	if err != nil {
		rt.abortInit(err)
		return nil, err
	}
	if rt.places, err = rt.exchangePlacement(ctx, c); err != nil {
		rt.abortInit(err)
		return nil, err
	}
	c.setLayout()
	c.setTable(table)
	if err := c.share(ctx); err != nil {
		rt.abortInit(err)
		return nil, err
	}
	rt.reportOrder(c)
	rt.reportTransports()
	return c, nil
}

// abortInit ends a job that failed to start on this rank. It sends err to the other ranks, and their
// Init fails with an error that names this rank.
func (rt *rankRuntime) abortInit(err error) {
	p := rt.peer(rt.rank)
	p.Call = "init"
	rt.mesh.Announce(&fault.Error{Kind: fault.PeerLost, Op: "init", Rank: rt.rank, Peers: []fault.Peer{p}, Err: err})
	rt.close(context.Background())
}

// reportTransports prints, on request, which transport this rank uses to each other rank.
func (rt *rankRuntime) reportTransports() {
	if !rt.opt.report {
		return
	}
	explainer, _ := rt.wire.(transport.Selector)
	for r := range rt.size {
		reason := rt.wire.Name()
		if explainer != nil {
			reason = explainer.Explain(rt.mesh.Addr(r))
		}
		if r != rt.rank {
			fmt.Fprintf(os.Stderr, "tutti: rank %d to rank %d: %s\n", rt.rank, r, reason)
		}
	}
}

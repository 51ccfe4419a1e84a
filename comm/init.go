package comm

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/internal/vars"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/rendezvous"
)

// Init makes this process a rank of its job and returns the communicator of all ranks. It waits
// until all ranks have called Init. Init reads this process's rank and the addresses of the other
// ranks from the environment: TUTTI_* variables (as tuttirun sets them), torchrun's variables,
// TF_CONFIG, PMI and PMIx, or a static list of hosts. Without any of these the job has one rank.
// The context bounds Init only, and not later calls.
//
// Init takes these steps. An error of one rank in any step ends Init on all ranks, and their errors
// name that rank:
//
//  1. Find the job in the environment, which also sets the options that the program did not set.
//  2. Listen, make the transport, and join the mesh: every rank opens control links.
//  3. Receive rank 0's table of algorithms, and exchange hosts and racks.
//  4. Agree on the transports between the ranks, and map shared memory where all ranks can.
//
// If tuttirun decides which processes are ranks (see Rejoin), Init waits until tuttirun has formed
// the job's next epoch. A process that was started while the job runs waits until the other
// processes have called Rejoin. Only the context limits this wait. The steps after it may take
// tuttirun's --elastic-timeout.
//
// A process may be one rank of one job at a time. It may call Init again after Close of the job's
// communicator. Errors are *fault.Error: Misuse for wrong options and for a second Init before
// Close, Refused for an environment that names no valid job or a peer that fails the handshake, and
// Timeout, which names the ranks that never came.
func Init(ctx context.Context, opts ...Option) (*Comm, error) {
	o := newOptions(opts)
	if ctx == nil {
		return nil, fault.New(fault.Misuse, "init", -1, "context: got nil, want one; context.Background() waits without a limit")
	}
	job, err := bootstrap.Find(bootstrap.Options{Secret: o.secret, Insecure: o.insecure, Listen: o.listen, Stores: o.stores})
	if err != nil {
		return nil, err
	}
	if err := o.check(job.Rank); err != nil {
		return nil, err
	}
	if o.timeoutSet {
		job.Timeout, job.TimeoutSet = o.timeout, true // takes precedence over TUTTI_TIMEOUT
	}
	if !initOpen.CompareAndSwap(false, true) {
		return nil, fault.New(fault.Misuse, "init", job.Rank, "process: got a second Init while the communicator of the first is open, want one job at a time; Close it first, or use Local for several ranks in one process")
	}
	c, err := o.join(ctx, job)
	if err != nil {
		initOpen.Store(false)
		return nil, err
	}
	c.rt.byInit = true
	return c, nil
}

// initOpen is true while this process is a rank of a job: from Init until Close of the job's
// communicator. The jobs of Local do not count.
var initOpen atomic.Bool

// initJob makes this process a rank of the given job.
func initJob(ctx context.Context, o *options, job *bootstrap.Job) (*Comm, error) {
	if err := o.secure(job); err != nil {
		return nil, err
	}
	w, err := o.newWire(o.tls)
	if err != nil {
		return nil, err
	}
	// A wrong transport name is an error even in a job of one rank, which needs no transport. In
	// such a job collectives run their algorithms for one rank, which move no data.
	if job.Size == 1 {
		w.Close()
		lone, addr := newLoneWire()
		m := member{lone, mesh.Config{Size: 1, Job: job.Name, Peers: []string{addr}, Host: job.Host, InProcess: true}}
		return m.start(ctx, o)
	}
	ctx, cancel := o.limited(ctx)
	defer cancel()
	l, err := o.openListener(ctx, job)
	if err != nil {
		w.Close()
		return nil, err
	}
	m := member{w, mesh.Config{
		Rank: job.Rank, Size: job.Size, Job: job.Name, Incarnation: job.Incarnation, Secret: job.Secret,
		Listener: l, Root: job.Root, Peers: job.Peers, Host: job.Host,
	}}
	return m.start(ctx, o)
}

// limited returns ctx with the default deadline of calls if ctx has no deadline.
func (o *options) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited || o.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, o.timeout, errTimeout)
}

// openListener opens the listener of this rank, and warns if that takes long because a name has no
// address yet.
func (o *options) openListener(ctx context.Context, job *bootstrap.Job) (net.Listener, error) {
	if o.stallWarning > 0 {
		late := time.AfterFunc(o.stallWarning, func() {
			o.log.Warn(fmt.Sprintf("tutti: rank %d still looks up a name: the host of rank 0, %q, or the host in %s; check both", job.Rank, job.Root, vars.Listen))
		})
		defer late.Stop()
	}
	return job.Listen(ctx)
}

// applyEnvironment fills in settings from the environment that the program has left unset. The
// program's options take precedence, because the program may depend on them.
func (o *options) applyEnvironment(job *bootstrap.Job) {
	if o.transport == "" {
		o.transport = job.Transport
	}
	if o.algorithm == "" {
		o.algorithm = job.Algorithm
	}
	if o.params.Tuning == "" {
		o.params.Tuning = job.Tuning
	}
	if o.params.Rack == "" {
		o.params.Rack = job.Rack
	}
	if o.params.Topology == "" {
		o.params.Topology = job.Topology
	}
	if !o.timeoutSet && job.TimeoutSet {
		o.timeout = job.Timeout
	}
	o.report = o.report || job.ReportTransport
	o.role = job.Role
}

// A member is a rank that has not joined its job yet. It owns its wire and its listener.
type member struct {
	wire wire
	cfg  mesh.Config // the job's settings; start adds the options
}

// localMember returns the member for rank r of Local. If the transports do not connect the ranks
// within the process, the rank gets a listener on loopback, and finds the other ranks by rank 0's
// address, the parameter root.
func (l *localWires) localMember(r int, o *options, root string) (*member, error) {
	m := &member{l.wires[r], mesh.Config{
		Rank: r, Size: len(l.wires), Job: "local/" + l.id, Secret: o.secret, InProcess: true, Host: hostName(), Peers: l.addrs,
	}}
	if l.addrs != nil {
		return m, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return m, fault.New(fault.Refused, "local", r, "listen on loopback: %w", err)
	}
	m.cfg.Listener, m.cfg.Root = listener, cmp.Or(root, listener.Addr().String())
	return m, nil
}

// close releases what the member owns. The member must not have started.
func (m *member) close() {
	m.wire.Close()
	if m.cfg.Listener != nil {
		m.cfg.Listener.Close()
	}
}

// start joins the job and makes its communicator. The mesh takes over the member's transport and
// listener, and start closes them if it fails. The order of the steps matters. The engine must
// exist before the mesh, because the mesh may deliver messages as soon as it has a link. The
// runtime must have its mesh before any communicator exists.
func (m *member) start(ctx context.Context, o *options) (*Comm, error) {
	cfg := m.cfg
	// In tests a fault injector may sit between the mesh and the transport.
	m.wire = o.wrapped(cfg.Rank, m.wire)
	ctx, cancel := o.limited(ctx)
	defer cancel()
	if o.tls != nil {
		var err error
		if cfg.TLS, err = o.tls.Server("tutti/1", "h2"); err != nil {
			m.close()
			return nil, err
		}
		cfg.Secures, cfg.NameOf = o.tls.Secures, o.tls.NameOf
	}
	rt := &rankRuntime{
		opt: o, rank: cfg.Rank, size: cfg.Size, log: o.log, initGoroutine: callsite.Goroutine(),
		comms: make(map[uint64]*Comm), lostRanks: make(map[int]*fault.Error), dead: make(map[int]bool),
		reactions: make(map[int]reaction), reported: make(map[string]chan struct{}),
	}
	// The context of Init ends with Init. The context of the runtime ends with Close.
	rt.ctx, rt.cancel = context.WithCancel(context.Background())
	rt.wire = m.wire
	rt.eng = rendezvous.New(rendezvous.Config{
		Rank: cfg.Rank, Size: cfg.Size, Credit: o.params.Credit, Threshold: o.params.Threshold, SendBuffer: o.params.SendBuffer,
		StepBytes: o.params.StepBytes, Static: o.params.StaticTensors, Protocol: protocols()[o.params.Protocol], Checksum: o.params.Checksums, Log: o.log,
		CallBack: rt.callBack,
	})
	cfg.Transport, cfg.BodySums, cfg.Log, cfg.Events, cfg.Data = m.wire.Transport, o.params.Checksums, o.log, rt, rt.eng
	cfg.Heartbeat, cfg.Silence, cfg.StartWarning, cfg.EndOnLoss = o.params.Heartbeat, o.params.Silence, o.stallWarning, o.params.EndOnLoss
	cfg.Redial, cfg.Exited = o.redial, o.exited
	joined, err := mesh.Start(ctx, cfg)
	if err != nil {
		rt.cancel()
		return nil, err
	}
	// From here on the other ranks have joined, so abortInit must send them any error.
	rt.setMesh(joined)
	return rt.newJobComm(ctx)
}

// A machinery carries the messages of a rank. The rest of the package sends messages by package
// p2p. It calls the machinery only for what concerns the rank as a whole: its end, lost ranks, and
// messages over the control links.
type machinery struct {
	wire wire
	eng  *rendezvous.Engine
	mesh *mesh.Mesh // set before any communicator exists; events may come earlier
}

// Other files do not import the machinery's packages. The declarations below give these files what
// they need of those packages.
const (
	floodStep = rendezvous.FloodStep
	maxFlood  = mesh.MaxFlood
)

// A meshAnswer is the result of a question to another rank.
type meshAnswer = mesh.Answer

// defaultParameters returns the parameters that apply where the program sets none. Parameters whose
// default is zero are left out.
func defaultParameters() Parameters {
	return Parameters{Segment: p2p.DefaultSegment, Heartbeat: mesh.DefaultHeartbeat, Silence: mesh.DefaultSilence}
}

// protocols returns the protocols by name; the name "" is the default. It is a function so that the
// package has no global variable.
func protocols() map[string]rendezvous.Protocol {
	return map[string]rendezvous.Protocol{
		"": rendezvous.Auto, "auto": rendezvous.Auto, "eager": rendezvous.Eager, "rendezvous": rendezvous.Rendezvous,
	}
}

// setMesh gives the runtime its mesh. The mesh starts after the runtime exists, because the mesh
// needs the runtime as its Events. Before setMesh, peer returns ranks without hosts.
func (rt *rankRuntime) setMesh(m *mesh.Mesh) {
	rt.eng.Bind(m)
	rt.mu.Lock()
	rt.mesh = m
	rt.mu.Unlock()
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
	if err := c.share(ctx, "init"); err != nil {
		rt.abortInit(err)
		return nil, err
	}
	rt.reportOrder(c)
	rt.reportTransports()
	return c, nil
}

// abortInit ends a job that failed to start on this rank. It sends err to the other ranks, and
// their Init fails with an error that names this rank.
func (rt *rankRuntime) abortInit(err error) {
	p := rt.peer(rt.rank)
	p.Call = "init"
	rt.mesh.Announce(&fault.Error{Kind: fault.PeerLost, Op: "init", Rank: rt.rank, Peers: []fault.Peer{p}, Err: err})
	rt.close(context.Background())
}

// reportTransports prints the transport from this rank to each other rank, if the user asked for
// it.
func (rt *rankRuntime) reportTransports() {
	if !rt.opt.report {
		return
	}
	for r := range rt.size {
		if r != rt.rank {
			fmt.Fprintf(os.Stderr, "tutti: rank %d to rank %d: %s\n", rt.rank, r, rt.wire.explain(rt.mesh.Addr(r)))
		}
	}
}

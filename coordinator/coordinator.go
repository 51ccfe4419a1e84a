package coordinator

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/internal/timeline"
)

// A Coordinator is one rank's part of the negotiation. It also executes the operations that are
// negotiated. Any number of goroutines may call its methods, and functions that take a Coordinator
// as an argument.
//
// The life of a submission, with the goroutine of each step:
//
//	program        Submit puts the handle in flight and steps the Worker, which collects requests
//	program, loop  the Worker sends its list: the step is complete, a goroutine waits, or time is up
//	wires          a callback posts the list as an event on rank 0
//	loop, poller   the Coordinator orders Buckets, and sends the order to all ranks
//	loop, poller   each rank's Worker applies the order and queues Buckets for the executor
//	executor       the collective runs; the handles are done, and their waiters are woken
//
// The poller is a goroutine of the program in Wait, or the executor. So while a goroutine of the
// program waits, only the last of these steps wakes another goroutine.
//
// Who may access which field:
//
//	fields                      owner
//	rank to started, opts       immutable after Start
//	worker to endCause,         the goroutine that owns stepping, see progress
//	sampler
//	pollEnd                     the poller, see progress
//	clockUnavailable            clockMu
//	settings, settingsFinal,    mu, which is held for moments only
//	events to closed, handles
//	exec                        see executor
//
// A goroutine that holds mu must not step the state machines. A goroutine that steps the state
// machines may take mu for a short time. So mu is always the last lock taken.
type Coordinator struct {
	// rank and size are this rank's number and the number of ranks in the communicator that Start
	// was given. worldRank maps a rank of that communicator to its number in the job, which errors
	// name.
	rank, size int
	worldRank  func(rank int) int
	all        *ProcessSet
	// homeGoroutine is the goroutine that called Start. It mostly runs the program's main loop, so
	// its stack shows where this rank is.
	homeGoroutine uint64
	cfg           negotiate.Config
	log           *logWriter
	// control carries the lists of the negotiation. data carries the tensors that all ranks reduce.
	// Process sets have their own communicators; see executor.
	control, data *comm.Comm
	started       time.Time

	worker *negotiate.Worker
	// coord is set only on rank 0.
	coord *negotiate.Coordinator
	// local holds the lists that the Coordinator and the Worker of rank 0 have sent each other and
	// that are not delivered yet.
	local []any
	// cost is the input that reports a finished Bucket. It is reused, so that a finished Bucket
	// needs no allocation.
	cost negotiate.Executed
	// clock is the time of the current step. Reading a clock for each event would take longer than
	// handling most events.
	clock negotiate.Time
	// workerDue and coordDue are the times at which the Worker and the Coordinator need their next
	// Step. If one of them is the constant never, its state machine needs no Step until its next
	// input.
	workerDue, coordDue negotiate.Time
	timer               *time.Timer    // fires at the earlier of workerDue and coordDue
	timerAt             negotiate.Time // the time that timer is set to
	// endCause is the error that ended the coordinator. It is nil if all ranks have shut down.
	endCause *fault.Error

	progress progress
	pollEnd  pollEnd
	wake     chan struct{} // wakes the loop to process events
	// stopped is closed after the last step. ended is closed when this rank has finished all work.
	stopped chan struct{}
	ended   chan struct{}
	closeMu sync.Mutex // makes a second Close wait for the first

	opts          *options
	sampler       *sampler   // measures the samples of Autotune, on rank 0; else nil
	tuneLog       *logWriter // the log of Autotune, or nil
	settings      Settings
	settingsFinal bool

	rec              atomic.Pointer[recorder] // records the timeline; nil if there is none
	clockMu          sync.Mutex               // serializes exchanges of pings
	clockUnavailable bool                     // rank 0 has failed to answer a ping

	mu          sync.Mutex
	events      []event
	spareEvents []event     // the slice that popEvents returned before, for reuse
	handles     handleTable // the handles in flight
	idleWaiters []*waiter   // waiters to be used again
	sites       map[callsite.Site]string
	// err is the error that ended the coordinator. It is nil before the end, and if all ranks have
	// shut down.
	err    error
	closed bool

	exec executor
}

// An event is a queued input of the state machines. The goroutine that owns stepping processes it.
// Exactly one of in, body and err is set.
type event struct {
	in   negotiate.WorkerInput // from this rank
	from int                   // the rank that sent body
	body []byte
	err  error // the error if the wires have failed or the caller has given up
}

// Start starts a coordinator among the ranks of c. All ranks of c call it. Start makes two
// communicators, so collectives on c may run at the same time. Rank 0's options apply to all ranks.
// Close ends the coordinator.
func Start(ctx context.Context, c *comm.Comm, opts ...Option) (*Coordinator, error) {
	began := time.Now() // on rank 0, earlier than every event after Start on other ranks
	o, err := newOptions(c, opts)
	if err != nil {
		return nil, err
	}
	control, err := c.Dup(ctx)
	if err != nil {
		return nil, err
	}
	data, err := c.Dup(ctx)
	if err != nil {
		control.Close(ctx)
		return nil, err
	}
	cfg, err := o.agree(ctx, control)
	if err != nil {
		control.Close(ctx)
		data.Close(ctx)
		return nil, err
	}
	co := &Coordinator{
		rank: c.Rank(), size: c.Size(), worldRank: c.WorldRank, homeGoroutine: callsite.Goroutine(), cfg: cfg, log: newLogWriter(o.log),
		control: control, data: data, started: began, worker: negotiate.NewWorker(cfg, c.Rank()),
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), ended: make(chan struct{}),
		workerDue: never, coordDue: never, timer: time.NewTimer(time.Hour), timerAt: never,
		sites: make(map[callsite.Site]string),
	}
	co.progress.wires = control.Bridge().NewPoller(peersOf(c)...)
	co.opts, co.settings = o, settingsOf(negotiate.Tunables{Cycle: cfg.Cycle, Fusion: cfg.Fusion, Cache: cfg.Cache > 0})
	co.all = newProcessSet(0, "", ranks(co.size))
	if co.rank == 0 {
		co.coord = negotiate.NewCoordinator(cfg)
	}
	co.exec.init(co)
	co.startNegotiation()
	go co.exec.loop()
	go co.loop()
	if file := timeline.FromEnvironment(); file != "" {
		if err := co.StartTimeline(ctx, file); err != nil {
			co.log.warn("tutti: coordinator: the timeline is not written: " + err.Error())
		}
	}
	return co, nil
}

// Close says that this rank submits nothing more. It waits until all ranks have called Close and
// every submission is done. If another rank then submits an operation that needs this rank, the
// operation fails there with fault.Closed. A second Close waits for the first.
//
// Close returns the error that ended the coordinator, or nil if Close ended it. If ctx ends first,
// the coordinator ends on all ranks with fault.Timeout or fault.Canceled. If ctx has no deadline,
// the limit of WithStallLimits applies.
//
// Close also waits for output to the logger and for Autotune's output, for up to 5 s each. After
// ctx has ended, it waits for up to 1 s each. If Autotune's log or file is still incomplete, Close
// logs a warning. If the logger still blocks, Close returns fault.Timeout or fault.Canceled, unless
// there already is an error.
func (co *Coordinator) Close(ctx context.Context) error {
	co.closeMu.Lock()
	defer co.closeMu.Unlock()
	if _, limited := ctx.Deadline(); !limited && co.cfg.StallEnd > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(co.cfg.StallEnd))
		defer cancel()
	}
	if r := co.rec.Load(); r != nil {
		co.sampleClock(ctx, r) // while rank 0 still answers
	}
	co.post(event{in: negotiate.Shutdown{}})
	co.processEvents()
	select {
	case <-co.ended:
	case <-ctx.Done():
		co.post(event{err: &fault.Error{Kind: fault.ContextKind(ctx.Err()), Op: "close coordinator", Rank: co.worldRank(co.rank), Err: ctx.Err()}})
		co.processEvents()
		co.exec.abandon()
		<-co.ended // comes soon, since this rank waits for no other rank now
	}
	unwritten := co.drainLogs(ctx)
	co.mu.Lock()
	defer co.mu.Unlock()
	if co.err != nil {
		return co.err
	}
	return unwritten
}

// Abort ends the coordinator on all ranks with err, for an error of this rank that keeps it from
// submitting what other ranks wait for. If the coordinator has ended, it does nothing.
func (co *Coordinator) Abort(err error) {
	co.post(event{err: err})
	co.processEvents()
}

// drainLogs waits for the queued log entries, within the limits of logWriter.wait. The coordinator
// has ended, so no other function adds entries.
func (co *Coordinator) drainLogs(ctx context.Context) error {
	if err := co.tuneLog.wait(ctx); err != nil {
		co.log.warn("tutti: coordinator: autotune's log or settings file is incomplete: " + err.Error())
	}
	if err := co.log.wait(ctx); err != nil {
		return fault.New(fault.ContextKind(err), "close coordinator", co.worldRank(co.rank), "the logger still blocks on warnings: %w", err)
	}
	return nil
}

// site describes the place at which the program has called this package.
func (co *Coordinator) site() string {
	at := callsite.Here()
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.describeSite(at)
}

// describeSite describes a call site in words. Looking up its file and line takes long, so the
// descriptions are cached. co.mu is held.
func (co *Coordinator) describeSite(at callsite.Site) string {
	s, known := co.sites[at]
	if !known {
		s = at.String()
		if len(co.sites) < maxSites {
			co.sites[at] = s
		}
	}
	return s
}

// maxSites bounds the cache of call site descriptions, for programs that generate code.
const maxSites = 4096

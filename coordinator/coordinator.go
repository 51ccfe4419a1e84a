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
)

// A Coordinator is one rank's part of the negotiation, and executes what is decided. Any number of
// goroutines may call its methods and the functions that it is passed to.
//
// The life of a submission, and the goroutines in it:
//
//	program        Submit puts the handle in flight and steps the Worker, which collects requests
//	program, loop  the Worker sends its list: the step is complete, a goroutine waits, or time is up
//	wires          a callback posts the list as an event on rank 0
//	loop, poller   the Coordinator orders Buckets, and sends the order to all ranks
//	loop, poller   each rank's Worker applies the order and queues Buckets for the executor
//	executor       the collective runs; the handles are done, and their waiters are woken
//
// The poller is a goroutine of the program in Wait, or the executor; so nothing but the last line
// need wake a goroutine while any of the program's waits.
//
// Who may touch what:
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
// A goroutine that holds mu may not step the state machines, and one that steps them takes mu for
// moments only. So mu is always the last lock taken.
type Coordinator struct {
	// rank and size are those in the communicator that Start was given; worldRank is a rank's
	// number in the job, which errors name.
	rank, size int
	worldRank  func(rank int) int
	all        *ProcessSet
	// homeGoroutine is the goroutine that called Start. Its stack answers where this rank is,
	// since it mostly runs the program's main loop.
	homeGoroutine uint64
	cfg           negotiate.Config
	log           *logWriter
	// control carries the lists of the negotiation, data the tensors of all ranks. Process sets
	// have communicators of their own, see executor.
	control, data *comm.Comm
	started       time.Time

	worker *negotiate.Worker
	// coord is nil except on rank 0.
	coord *negotiate.Coordinator
	// local holds the lists on their way between the two on rank 0.
	local []any
	// cost is the input of every finished Bucket, used again and again so that none is
	// allocated.
	cost negotiate.Executed
	// clock is the time of this step. To read a clock for each event would take longer than
	// most events.
	clock negotiate.Time
	// workerDue and coordDue are when the machines want to be called again; never: not.
	workerDue, coordDue negotiate.Time
	timer               *time.Timer    // for the earlier of the two
	timerAt             negotiate.Time // what timer is set to
	// endCause is why the coordinator ended. It is nil when all ranks have shut down.
	endCause *fault.Error

	progress progress
	pollEnd  pollEnd
	wake     chan struct{} // has the loop process events
	// stopped is closed after the last step, and ended when nothing more will happen on this
	// rank.
	stopped chan struct{}
	ended   chan struct{}
	closeMu sync.Mutex // makes a second Close wait for the first

	opts          *options
	sampler       *sampler   // of autotune, on rank 0
	tuneLog       *logWriter // of autotune, or nil
	settings      Settings
	settingsFinal bool

	rec              atomic.Pointer[recorder] // of the timeline, or nil
	clockMu          sync.Mutex               // one exchange of pings at a time
	clockUnavailable bool                     // rank 0 has not answered a ping

	mu          sync.Mutex
	events      []event
	spareEvents []event     // the slice before, for reuse
	handles     handleTable // of what is in flight
	idleWaiters []*waiter   // for reuse
	sites       map[callsite.Site]string
	err         error // why it ended; nil before, and when all ranks have shut down
	closed      bool

	exec executor
}

// An event is an input of the state machines that waits for the owner of stepping. One of in, body
// and err is set.
type event struct {
	in   negotiate.WorkerInput // from this rank
	from int                   // the rank that has sent body, a list
	body []byte
	err  error // the wires have failed, or the caller gives up
}

// Start starts a coordinator among the ranks of c, all of which call it. It makes two communicators
// of its own, so collectives on c go on beside it. Rank 0's options hold for all ranks. Close ends
// it.
func Start(ctx context.Context, c *comm.Comm, opts ...Option) (*Coordinator, error) {
	began := time.Now() // earlier on rank 0 than anything that another rank does after Start
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
	if file := timelineFile(); file != "" {
		if err := co.StartTimeline(ctx, file); err != nil {
			co.log.warn("tutti: coordinator: the timeline is not written: " + err.Error())
		}
	}
	return co, nil
}

// Close says that this rank submits nothing more, and waits until all ranks have said so and
// everything submitted is done. What other ranks submit meanwhile and need this rank for fails
// there with fault.Closed. A second Close waits for the first one.
//
// The error is why the coordinator ended, if it was not this. When ctx ends first, the coordinator
// ends on all ranks with fault.Timeout or fault.Canceled. Where ctx has no deadline, the limit of
// WithStallLimits applies.
//
// What is still to be written, to the logger or by Autotune, has 5 s each, and 1 s after the end of
// ctx. If Autotune's log or file is incomplete then, a warning says so; if the logger still blocks,
// the error is fault.Timeout or fault.Canceled unless there is another one.
func (co *Coordinator) Close(ctx context.Context) error {
	co.closeMu.Lock()
	defer co.closeMu.Unlock()
	if _, limited := ctx.Deadline(); !limited && co.cfg.StallEnd > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(co.cfg.StallEnd))
		defer cancel()
	}
	if r := co.rec.Load(); r != nil {
		co.sampleClock(ctx, r) // while rank 0 is there
	}
	co.post(event{in: negotiate.Shutdown{}})
	co.processEvents()
	select {
	case <-co.ended:
	case <-ctx.Done():
		co.post(event{err: &fault.Error{Kind: fault.ContextKind(ctx.Err()), Op: "close coordinator", Rank: co.worldRank(co.rank), Err: ctx.Err()}})
		co.processEvents()
		co.exec.abandon()
		<-co.ended // soon, since it waits for no other rank now
	}
	unwritten := co.drainLogs(ctx)
	co.mu.Lock()
	defer co.mu.Unlock()
	if co.err != nil {
		return co.err
	}
	return unwritten
}

// drainLogs waits until what this rank has to say is written. Nothing is added any more.
func (co *Coordinator) drainLogs(ctx context.Context) error {
	if err := co.tuneLog.wait(ctx); err != nil {
		co.log.warn("tutti: coordinator: autotune's log or settings file is incomplete: " + err.Error())
	}
	if err := co.log.wait(ctx); err != nil {
		return fault.New(fault.ContextKind(err), "close coordinator", co.worldRank(co.rank), "the logger still blocks on warnings: %w", err)
	}
	return nil
}

// site is the program's call of this package, in words.
func (co *Coordinator) site() string {
	at := callsite.Here()
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.describeSite(at)
}

// describeSite puts a call site into words. To look up its file and line takes long, so they are
// kept. co.mu is held.
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

// maxSites bounds the call sites that are kept in words, for programs that generate code.
const maxSites = 4096

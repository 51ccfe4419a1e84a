package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
)

// A Coordinator is one rank's part of the negotiation, and carries out what is
// decided. Its methods, and the functions that take it, may be called by any
// number of goroutines.
type Coordinator struct {
	rank, size int // in the communicator that Start was given
	world      func(rank int) int
	all        *ProcessSet
	home       uint64 // the goroutine that called Start, for "where is it now"
	cfg        negotiate.Config
	log        *slog.Logger
	nego, data *comm.Comm
	began      time.Time

	member *negotiate.Member // these two belong to the loop
	leader *negotiate.Leader // nil but on rank 0
	local  []any             // messages between the two on this rank
	cost   negotiate.Carried // what the leader is told, again and again
	clock  negotiate.Time    // when the loop woke: to ask for every event takes longer than most events
	why    *fault.Error      // of the end; nil when all ranks have closed

	wake   chan struct{} // there is something in inbox
	ended  chan struct{} // closed when nothing more will happen
	stopMu sync.Mutex    // serves only to make Close wait for Close

	opts     *options
	sampler  *sampler // of autotune, on rank 0; belongs to the loop
	settings Settings // mu guards this and the next
	settled  bool

	rec     atomic.Pointer[recorder] // of the timeline that is being made; nil for none
	clockMu sync.Mutex               // serves to make pings come one after the other; guards mute
	mute    bool                     // rank 0 has not answered a ping

	mu        sync.Mutex // guards the rest
	inbox     []event
	spare     []event   // the one before, for reuse
	unsent    bool      // something was submitted since the last Flush
	table     table     // of what is under way
	fresh     int       // submissions in inbox that the loop was not woken for
	missing   int       // how many complete a step
	timed     bool      // the loop will wake by itself
	idle      []*waiter // for reuse
	sites     map[callsite.Site]string
	lastSite  callsite.Site // most submissions are from the place of the one before
	lastWords string
	err       error // why it ended; nil before, and when all ranks have closed
	over      bool

	exec executor
}

// An event is what the loop is told.
type event struct {
	in   negotiate.MemberInput // from this rank, or nil
	from int                   // else a message of this rank,
	body []byte
	err  error // or why there will be no more of them
}

// Start starts a coordinator among the ranks of c, which all call it. It makes
// two communicators of its own, so collectives on c go on beside it. Rank 0's
// options hold for all. Close ends it.
func Start(ctx context.Context, c *comm.Comm, opts ...Option) (*Coordinator, error) {
	began := time.Now() // on rank 0 before anything that another rank does after Start
	o, err := newOptions(c, opts)
	if err != nil {
		return nil, err
	}
	nego, err := c.Dup(ctx)
	if err != nil {
		return nil, err
	}
	data, err := c.Dup(ctx)
	if err != nil {
		nego.Close(ctx)
		return nil, err
	}
	cfg, err := o.agree(ctx, nego)
	if err != nil {
		nego.Close(ctx)
		data.Close(ctx)
		return nil, err
	}
	co := &Coordinator{
		rank: c.Rank(), size: c.Size(), world: c.WorldRank, home: callsite.Goroutine(), cfg: cfg, log: o.log,
		nego: nego, data: data, began: began, member: negotiate.NewMember(cfg, c.Rank()),
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
		sites: make(map[callsite.Site]string),
	}
	co.opts, co.settings = o, settingsOf(negotiate.Tuning{Cycle: cfg.Cycle, Fusion: cfg.Fusion, Cache: cfg.Cache > 0})
	co.all = newProcessSet(0, "", ranks(co.size))
	if co.rank == 0 {
		co.leader = negotiate.NewLeader(cfg)
	}
	co.exec.init(co)
	go co.exec.loop()
	go co.loop()
	if file := timelineFile(); file != "" {
		if err := co.StartTimeline(ctx, file); err != nil {
			co.log.Warn("tutti: the timeline: " + err.Error())
		}
	}
	return co, nil
}

// Rank is this process's rank among those of the coordinator.
func (co *Coordinator) Rank() int { return co.rank }

// Size is the number of ranks.
func (co *Coordinator) Size() int { return co.size }

// Close says that this rank submits nothing more, and waits until all ranks have
// said so and everything submitted is done. What other ranks submit meanwhile,
// and need this rank for, fails there with fault.Closed. Its error is why the
// coordinator ended, if not so; when ctx ends first the coordinator ends on all
// ranks with fault.Timeout or fault.Canceled. Where ctx has no deadline the limit
// of WithStallLimits applies. Closing twice is no error.
func (co *Coordinator) Close(ctx context.Context) error {
	co.stopMu.Lock()
	defer co.stopMu.Unlock()
	if _, limited := ctx.Deadline(); !limited && co.cfg.StallEnd > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(co.cfg.StallEnd))
		defer cancel()
	}
	if r := co.rec.Load(); r != nil {
		co.markClock(ctx, r) // while rank 0 is there
	}
	co.post(event{in: negotiate.Leave{}})
	select {
	case <-co.ended:
	case <-ctx.Done():
		kind := fault.Canceled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			kind = fault.Timeout
		}
		co.post(event{err: &fault.Error{Kind: kind, Op: "close coordinator", Rank: co.world(co.rank), Err: ctx.Err()}})
		co.exec.abandon()
		<-co.ended // soon: it waits for no other rank any more
	}
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.err
}

// post tells the loop.
func (co *Coordinator) post(ev event) {
	co.mu.Lock()
	over := co.over
	if !over {
		co.inbox = append(co.inbox, ev)
	}
	co.mu.Unlock()
	if !over {
		co.signal()
	}
}

func (co *Coordinator) signal() {
	select {
	case co.wake <- struct{}{}:
	default:
	}
}

// flush has what was submitted sent at once: somebody waits for it.
func (co *Coordinator) flush() {
	co.mu.Lock()
	unsent := co.unsent
	co.unsent = false
	co.mu.Unlock()
	if unsent {
		co.post(event{in: negotiate.Flush{}})
	}
}

// site is where the program has called this package, in words.
func (co *Coordinator) site() string {
	at := callsite.Here()
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.inWords(at)
}

// inWords puts a place into words. co.mu is held.
func (co *Coordinator) inWords(at callsite.Site) string {
	if at == co.lastSite {
		return co.lastWords
	}
	s, known := co.sites[at]
	if !known {
		s = at.String()
		if len(co.sites) < maxSites {
			co.sites[at] = s
		}
	}
	co.lastSite, co.lastWords = at, s
	return s
}

// maxSites bounds the places in a program that are remembered in words.
const maxSites = 4096

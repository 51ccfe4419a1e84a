package comm

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/topology"
	"github.com/tutti-go/tutti/transport"
)

// A world is what all communicators of one rank share: the mesh, the engine, and
// what is known of the other ranks. It is the mesh's Events.
type world struct {
	opt   *options
	rank  int
	size  int
	mesh  *mesh.Mesh // set before any communicator exists; events may come earlier
	wire  transport.Transport
	eng   *rendezvous.Engine
	log   *slog.Logger
	home  uint64 // the goroutine that called Init, for "where is it now"
	calls calls
	told  past          // the control goroutine's, as is sites: what a heartbeat told last
	sites callsite.Book // and where calls were
	model choose.Model  // rank 0's; set before Init returns
	// places is where each rank runs; all ranks know the same. Set once, before any
	// communicator but the job's exists.
	places []topology.Place

	ctx    context.Context // ends when the world is closed
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines started by spawn

	mu      sync.Mutex // guards the rest
	comms   map[uint64]*Comm
	early   earlyRevokes
	gone    map[int]error  // ranks that are lost or closed
	cut     []*fault.Error // links that are lost
	ended   error          // after Close, or a verdict about this rank
	closing bool
	down    *fault.Error // the first verdict
}

// maxEarly bounds what is remembered for communicators that are not there yet.
const maxEarly = 256

// earlyRevokes are the last maxEarly revokes of communicators that this rank does
// not have. It may make them soon; of others it is no member, or has closed them.
type earlyRevokes struct {
	why   map[uint64]*fault.Error
	order []uint64 // the oldest first
}

func (er *earlyRevokes) add(id uint64, e *fault.Error) {
	if er.why[id] != nil {
		return
	}
	if er.why == nil {
		er.why = make(map[uint64]*fault.Error)
	}
	if len(er.order) == maxEarly {
		delete(er.why, er.order[0])
		er.order = slices.Delete(er.order, 0, 1)
	}
	er.why[id] = e
	er.order = append(er.order, id)
}

func (er *earlyRevokes) take(id uint64) *fault.Error {
	e := er.why[id]
	if e != nil {
		delete(er.why, id)
		er.order = slices.DeleteFunc(er.order, func(x uint64) bool { return x == id })
	}
	return e
}

// spawn runs f on a goroutine that Close waits for; false when it is too late.
func (w *world) spawn(f func(ctx context.Context)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return false
	}
	w.work.Add(1)
	go func() {
		defer w.work.Done()
		f(w.ctx)
	}()
	return true
}

// Verdict implements mesh.Events: somebody is lost, and all ranks hear the same.
func (w *world) Verdict(e *fault.Error) {
	w.mu.Lock()
	if w.down == nil {
		w.down = e
	}
	w.mu.Unlock()
	if e.Kind == fault.LinkLost {
		w.linkLost(e)
		return
	}
	for _, p := range e.Peers {
		if p.Rank == w.rank {
			w.end(e)
			return
		}
	}
	for _, p := range e.Peers {
		w.lose(p.Rank, e)
	}
}

// linkLost ends what needs both ranks of a broken link: messages between them on
// themselves, and collectives of every communicator that has both.
func (w *world) linkLost(e *fault.Error) {
	w.mu.Lock()
	w.cut = append(w.cut, e)
	w.mu.Unlock()
	for _, p := range e.Peers {
		if p.Rank != w.rank && w.blamed(e, w.rank) {
			w.eng.FailPeer(p.Rank, e)
		}
	}
	for _, c := range w.all() {
		if c.hasAll(e.Peers) {
			c.g.RevokeCollectives(e)
		}
	}
}

func (c *Comm) hasAll(peers []fault.Peer) bool {
	for _, p := range peers {
		if _, in := c.g.Member(p.Rank); !in {
			return false
		}
	}
	return true
}

// lostIn is why collectives of a new communicator cannot be: one of its ranks, or
// a link between two of them, is lost. Ranks that exchange nothing over that link
// would not find out by themselves. w.mu is held.
func (w *world) lostIn(c *Comm) error {
	for r := range c.Size() {
		var f *fault.Error
		if errors.As(w.gone[c.g.World(r)], &f) && f.Kind != fault.Closed {
			return f
		}
	}
	for _, e := range w.cut {
		if c.hasAll(e.Peers) {
			return e
		}
	}
	return nil
}

func (w *world) blamed(e *fault.Error, rank int) bool {
	for _, p := range e.Peers {
		if p.Rank == rank {
			return true
		}
	}
	return false
}

// lose ends every call that needs a rank: messages with it, and collectives of
// every communicator that has it.
func (w *world) lose(rank int, err error) {
	w.mu.Lock()
	w.gone[rank] = err
	w.mu.Unlock()
	w.eng.FailPeer(rank, err)
	for _, c := range w.all() {
		if _, in := c.g.Member(rank); in {
			c.g.RevokeCollectives(err)
		}
	}
}

// Goodbye implements mesh.Events. What the rank sent has been taken; collectives
// that need no more of it go on.
func (w *world) Goodbye(rank int) {
	err := &fault.Error{Kind: fault.Closed, Op: "close", Rank: rank, Peers: []fault.Peer{w.peer(rank)}}
	w.mu.Lock()
	w.gone[rank] = err
	w.mu.Unlock()
	w.eng.FailPeer(rank, err)
}

// end makes every call of this rank fail with err.
func (w *world) end(err error) {
	w.mu.Lock()
	if w.ended == nil {
		w.ended = err
	}
	w.mu.Unlock()
	w.eng.End(err)
}

// all are the communicators alive on this rank.
func (w *world) all() []*Comm {
	w.mu.Lock()
	defer w.mu.Unlock()
	cs := make([]*Comm, 0, len(w.comms))
	for _, c := range w.comms {
		cs = append(cs, c)
	}
	return cs
}

func (w *world) find(id uint64) *Comm {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.comms[id]
}

// LastCall implements mesh.Events. It makes no garbage for a call like one before.
func (w *world) LastCall(b []byte) []byte {
	w.calls.mu.Lock()
	w.told = w.calls.recent()
	w.calls.mu.Unlock()
	last := &w.told
	if last.name == "" {
		return b
	}
	b = last.appendTo(b, last.seq)
	if at := w.sites.Of(&last.site); at != "" {
		b = append(append(b, " at "...), at...)
	}
	return b
}

// Kinds of floods; rendezvous.FloodStep is another.
const (
	floodPrint  = 'f' // a fingerprint of a rank that waits
	floodRevoke = 'r' // a communicator is revoked
)

// Flooded implements mesh.Events.
func (w *world) Flooded(from int, kind byte, body []byte) {
	switch kind {
	case rendezvous.FloodStep:
		w.eng.HandleStepEnd(from, body)
	case floodPrint:
		w.printHeard(from, body)
	case floodRevoke:
		w.revokeHeard(body)
	}
}

// peer describes a rank for an error.
func (w *world) peer(rank int) fault.Peer {
	w.mu.Lock()
	m := w.mesh
	w.mu.Unlock()
	if m == nil {
		return fault.Peer{Rank: rank}
	}
	return fault.Peer{Rank: rank, Host: m.Host(rank)}
}

// attach gives the world its mesh.
func (w *world) attach(m *mesh.Mesh) {
	w.eng.Bind(m)
	w.mu.Lock()
	w.mesh = m
	w.mu.Unlock()
}

// shut closes the world: promised bytes first, then the goodbye.
func (w *world) shut(ctx context.Context) error {
	w.mu.Lock()
	if w.closing {
		w.mu.Unlock()
		return nil
	}
	w.closing = true
	failed := w.ended
	w.mu.Unlock()
	var err error
	if failed == nil {
		err = w.eng.Drain(ctx)
	}
	closed := fault.New(fault.Closed, "close", w.rank, "this rank has closed")
	w.mu.Lock()
	if w.ended == nil {
		w.ended = closed
	}
	w.mu.Unlock()
	w.eng.End(closed)
	for _, c := range w.all() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.giveBack()
	}
	if e := w.mesh.Close(ctx); err == nil {
		err = e
	}
	w.cancel()
	w.work.Wait()
	w.eng.Rest()
	return err
}

// askLimit bounds how long an error waits for the words of other ranks.
const askLimit = time.Second

// where is the place that a call was made from, and, for a rank that is in no
// call, where the goroutine that called Init is now.
func (w *world) where(site callsite.Site, underWay bool) string {
	if underWay {
		return site.String()
	}
	if now := callsite.Now(w.home); now != "" {
		return now
	}
	return site.String()
}

package membership

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A cluster runs the Machines of n ranks against a simulated network: connections keep the order of
// messages, messages take a few milliseconds, killed ranks close their connections, and pairs that
// are cut lose all messages without notice. Time is simulated.
type cluster struct {
	rng    *rand.Rand
	now    Time
	queue  events
	events int
	nodes  []*node
	pipes  map[[2]int]*pipe // by (low, high): the current connection
	cut    map[[2]int]bool
	trace  func(format string, args ...any)

	handshake   Span // how much longer the handshakes of a dial take
	oneWay      bool // a dial to a lower rank fails
	downOnly    bool // a dial to a higher rank is not answered
	unreachable bool // a dial over a pair that is cut fails at once, as it has no route
}

// A node is one rank.
type node struct {
	state    *Machine
	dead     bool
	stopped  bool
	busy     Span    // the delay before each input is handled
	behind   bool    // an input is waiting
	resuming bool    // handleBacklog runs
	backlog  []Input // inputs that arrived while the rank was stopped
	failures []failureReport
	departed []int
	complete bool
	left     bool
	answered map[uint64]Answered
	flooded  map[string]int
	dropped  map[int]Time // by rank: when the dial began that is not answered
	tickID   int          // the number of the last tick; a tick with an older number is ignored
	replies  func(q []byte) []byte
}

type failureReport struct {
	at  Time
	err *fault.Error
}

// A pipe is one connection. Its field last holds the arrival time of the last message in each
// direction.
type pipe struct {
	open [2]bool // at the low and the high end
	last [2]Time
}

type event struct {
	at  Time
	n   int
	run func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newCluster(n int, seed uint64, joined bool) *cluster {
	w := &cluster{
		rng:   rand.New(rand.NewPCG(seed, 1)),
		pipes: make(map[[2]int]*pipe),
		cut:   make(map[[2]int]bool),
		trace: func(string, ...any) {},
	}
	for r := range n {
		w.nodes = append(w.nodes, &node{
			state: New(Config{Me: r, Size: n, Host: fmt.Sprintf("host-%d", r), Joined: joined,
				Heartbeat: 250 * Millisecond, Silence: 4 * Second}),
			answered: make(map[uint64]Answered),
			flooded:  make(map[string]int),
			dropped:  make(map[int]Time),
			replies:  func(q []byte) []byte { return append([]byte("re: "), q...) },
		})
	}
	return w
}

// start lets rank r take its first step after the given time.
func (w *cluster) start(r int, after Span) {
	w.after(after, func() { w.step(r, Tick{}) })
}

func (w *cluster) startAll() {
	for r := range w.nodes {
		w.start(r, Span(w.rng.IntN(20))*Millisecond)
	}
}

func (w *cluster) after(d Span, run func()) {
	w.events++
	heap.Push(&w.queue, event{w.now + Time(d), w.events, run})
}

// run runs the events up to a time.
func (w *cluster) run(end Time) {
	for len(w.queue) > 0 && w.queue[0].at <= end {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.run()
	}
	w.now = end
}

func (w *cluster) latency() Span { return Millisecond + Span(w.rng.IntN(3000))*Millisecond/1000 }

func pair(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// side returns the index of rank a's end in the pipe between the ranks a and b.
func side(a, b int) int {
	if a < b {
		return 0
	}
	return 1
}

func (w *cluster) step(r int, in Input) {
	x := w.nodes[r]
	if x.dead {
		return
	}
	if x.busy > 0 && !x.resuming {
		x.backlog = append(x.backlog, in)
		if !x.behind {
			x.behind = true
			w.after(x.busy, func() { w.handleBacklog(r) })
		}
		return
	}
	if x.stopped {
		if _, tick := in.(Tick); !tick {
			x.backlog = append(x.backlog, in)
		}
		return
	}
	w.trace("%v %d < %T%+v", Span(w.now), r, in, in)
	for _, o := range slices.Clone(x.state.Step(w.now, in)) {
		w.trace("%v %d > %v", Span(w.now), r, o)
		w.execute(r, o)
	}
	x.tickID++
	tickID := x.tickID
	w.after(max(x.state.Next(), Millisecond/10), func() {
		if x.tickID == tickID {
			w.step(r, Tick{})
		}
	})
}

func (w *cluster) execute(r int, o Output) {
	x := w.nodes[r]
	switch o := o.(type) {
	case Send:
		w.send(r, o.To, o.Msg)
	case Dial:
		w.after(w.latency(), func() { w.dial(r, o.Rank) })
	case Cut:
		w.hangUp(r, o.Rank)
	case Report:
		x.failures = append(x.failures, failureReport{w.now, o.Err})
	case Departed:
		x.departed = append(x.departed, o.Rank)
	case Complete:
		x.complete = true
	case Deliver:
		x.flooded[fmt.Sprintf("%d:%s", o.From, o.Body)]++
	case Asked:
		w.after(0, func() { w.step(r, Reply{o.From, o.Ref, x.replies(o.Body)}) })
	case Answered:
		x.answered[o.ID] = o
	case Left:
		x.left = true
	}
}

func (w *cluster) send(from, to int, m Message) {
	p := w.pipes[pair(from, to)]
	me := side(from, to)
	if p == nil || !p.open[me] || w.cut[pair(from, to)] {
		return
	}
	at := max(p.last[me]+1, w.now+Time(w.latency()))
	p.last[me] = at
	w.after(Span(at-w.now), func() {
		if p.open[1-me] && !w.cut[pair(from, to)] {
			w.step(to, Received{from, m})
		}
	})
}

// dial opens a pipe. As in the handshake, the acceptor's end opens first.
func (w *cluster) dial(from, to int) {
	switch {
	case w.nodes[from].dead:
	case w.oneWay && from > to:
		w.after(w.latency(), func() { w.step(from, DialFailed{Rank: to}) })
	case w.cut[pair(from, to)] || w.nodes[to].stopped || w.downOnly && from < to:
		attempt := 5 * Second // the limit of package mesh
		if d := w.nodes[from].state.DialTimeout(to); d > 0 {
			attempt = d
		}
		if w.unreachable {
			attempt = w.latency()
		}
		x, began := w.nodes[from], w.now
		x.dropped[to] = began
		w.after(attempt, func() {
			if at, ok := x.dropped[to]; ok && at == began {
				delete(x.dropped, to)
				w.step(from, DialFailed{Rank: to})
			}
		})
	case w.nodes[to].dead:
		w.after(w.latency(), func() { w.step(from, DialFailed{Rank: to, NoProcess: true}) })
	case w.nodes[to].ended() || w.nodes[to].tickID == 0:
		w.after(w.latency(), func() { w.step(from, DialFailed{Rank: to}) })
	case w.nodes[to].state.ranks[from].gone():
		departed := w.nodes[to].state.ranks[from].status == departed
		w.after(w.latency(), func() { w.step(from, DialFailed{Rank: to, Evicted: !departed, Gone: departed}) })
	case from > to && w.nodes[to].state.ranks[from].link.dialing && !w.givesUp(to, from): // the lower rank's dial wins
		w.after(w.latency(), func() { w.step(from, DialFailed{Rank: to}) })
	case w.handshake > 0 && w.nodes[from].state.DialTimeout(to) > 0 && w.handshake > w.nodes[from].state.DialTimeout(to):
		w.after(w.nodes[from].state.DialTimeout(to), func() { w.step(from, DialFailed{Rank: to}) })
	default:
		if old := w.pipes[pair(from, to)]; old != nil {
			old.open = [2]bool{}
		}
		p := &pipe{open: [2]bool{true, true}}
		w.pipes[pair(from, to)] = p
		d := w.latency() + w.nodes[to].busy + w.handshake
		p.last[side(to, from)] = w.now + Time(d)
		w.after(d, func() {
			if p.open[side(from, to)] {
				w.step(from, LinkUp{to})
			} else {
				w.step(from, DialFailed{Rank: to})
			}
		})
		if w.handshake == 0 {
			w.step(to, LinkUp{from})
			return
		}
		w.after(w.handshake, func() {
			if p.open[side(to, from)] {
				w.step(to, LinkUp{from})
			}
		})
	}
}

// givesUp reports whether rank r gives up its dial of a higher rank because that rank has dialled
// meanwhile. Then the dial ends without DialFailed.
func (w *cluster) givesUp(r, higher int) bool {
	x := w.nodes[r]
	began, ok := x.dropped[higher]
	if !ok || !x.state.cfg.Redial || w.now-began < Time(x.state.cfg.Silence/16) {
		return false
	}
	delete(x.dropped, higher)
	return true
}

func (x *node) ended() bool { return x.left }

// hangUp closes rank r's end. Messages that r has sent still arrive.
func (w *cluster) hangUp(r, peer int) {
	p := w.pipes[pair(r, peer)]
	me := side(r, peer)
	if p == nil || !p.open[me] {
		return
	}
	p.open[me] = false
	if w.cut[pair(r, peer)] {
		return
	}
	at := max(p.last[me]+1, w.now+Time(w.latency()))
	w.after(Span(at-w.now), func() {
		if p.open[1-me] && !w.cut[pair(r, peer)] {
			p.open[1-me] = false
			w.step(peer, LinkDown{Rank: r, Cause: "the connection was closed"})
		}
	})
}

// kill ends a rank like SIGKILL: the operating system closes the rank's connections.
func (w *cluster) kill(r int) {
	w.trace("%v %d killed", Span(w.now), r)
	w.nodes[r].dead = true
	for peer := range w.nodes {
		if peer != r {
			w.hangUp(r, peer)
		}
	}
}

// end closes a rank that has left.
func (w *cluster) end(r int) { w.kill(r) }

// redial sets Config.Redial of all ranks.
func (w *cluster) redial(on bool) {
	for _, x := range w.nodes {
		x.state.cfg.Redial = on
	}
}

// reset closes the pipe between two ranks at both ends.
func (w *cluster) reset(a, b int) {
	p := w.pipes[pair(a, b)]
	if p == nil {
		return
	}
	for _, r := range []int{a, b} {
		if p.open[side(r, a+b-r)] {
			p.open[side(r, a+b-r)] = false
			w.after(w.latency(), func() {
				if w.pipes[pair(a, b)] == p { // no other pipe has replaced it
					w.step(r, LinkDown{Rank: a + b - r, Cause: "reset"})
				}
			})
		}
	}
}

// sever cuts a pair without notice.
func (w *cluster) sever(a, b int) {
	w.trace("%v cut %d-%d", Span(w.now), a, b)
	w.cut[pair(a, b)] = true
}

// isolate cuts a rank off from all other ranks.
func (w *cluster) isolate(r int) {
	for peer := range w.nodes {
		if peer != r {
			w.sever(r, peer)
		}
	}
}

func (w *cluster) stop(r int) { w.nodes[r].stopped = true }

func (w *cluster) resume(r int) {
	x := w.nodes[r]
	x.stopped = false
	backlog := x.backlog
	x.backlog = nil
	for _, in := range backlog {
		w.step(r, in)
	}
	w.step(r, Tick{})
}

// handleBacklog handles the inputs that a busy rank has not handled yet.
func (w *cluster) handleBacklog(r int) {
	x := w.nodes[r]
	backlog := x.backlog
	x.backlog, x.behind, x.resuming = nil, false, true
	for _, in := range backlog {
		w.step(r, in)
	}
	x.resuming = false
}

// completed reports whether all ranks that are alive have started.
func (w *cluster) completed() bool {
	return !slices.ContainsFunc(w.nodes, func(x *node) bool { return !x.dead && !x.complete })
}

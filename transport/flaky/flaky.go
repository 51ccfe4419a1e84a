// Package flaky injects faults into a Transport by a script: at the k-th step it cuts a Conn, kills
// a whole node, or delays or corrupts a frame. A suite runs once without a rule to count the steps,
// and then once for each k.
//
//	script := flaky.New(flaky.Options{Rules: []flaky.Rule{flaky.Cut(flaky.Within, 7).From(0)}})
//	nodes[i].Transport = script.Wrap(nodes[i].Transport, i)
//
// A step is a frame that is sent, or one use of an ability. The abilities are a write into exposed
// memory, a frame in parts, a frame that is sent inline, an Expose, a Share, and a flag that is set
// in shared memory. A part of a body that arrives before the rest is a step only if Options.Counts
// counts it. Work requests and completions of a software device are steps if the device calls
// Device. A node is a wrapped Transport. The caller chooses its number, usually the rank.
// Options.Counts limits which steps are counted, so that a suite can leave out handshakes and
// heartbeats.
//
// Abilities that the wrapped value lacks, or that Options.Hide names, are refused; see
// abilities.go.
//
// The Script lets only one Dial at a time reach each node. So it learns to which node an accepted
// Conn leads. Both ends must therefore be wrapped by one Script, in one process. For a node that
// the Script does not wrap, the To of a rule never matches. On a Conn to such a node, a cut Within
// or After a frame happens as soon as the frame has been sent.
//
// The receiver may or may not see a frame into memory with the ID transport.NoNotify. So the
// sender applies cuts at such a frame: Before and Within when it sends the frame, and After when
// the frame is Done.
//
// All methods of a Script, and of everything that it wraps, may be called concurrently. Unlike a
// real transport, the wrapper allocates memory for each frame.
package flaky

import (
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
)

// Options configure a Script. The zero Options count every step and inject nothing.
type Options struct {
	Rules []Rule
	// Counts reports whether a step is counted. It is called for the steps in order, one at a time.
	// It must be short, and must not call the Script. If it is nil, all steps except chunks are
	// counted.
	Counts func(Step) bool
	// Hide lists abilities to refuse, by the kind of their step. Hiding Parts joins the parts of
	// bodies.
	Hide []StepKind
}

// A StepKind is the kind of a Step.
type StepKind uint8

// The kinds of steps.
const (
	Frame   StepKind = iota + 1 // Send
	Write                       // Send into exposed memory
	Parts                       // Send of a frame in parts, also into exposed memory
	Expose                      // Expose
	Share                       // Share
	Publish                     // a flag set in shared memory
	// A Chunk is a part of a body that arrives before the rest. The wire's timing decides how many
	// there are.
	Chunk
	Post       // a work request that a device is about to carry out; see Device
	Completion // a completion that a device is about to queue; see Device
	TrySend    // TrySend, also if it refuses and Send sends the frame
)

// String returns the kind's name.
func (k StepKind) String() string {
	names := [...]string{Frame: "frame", Write: "write", Parts: "parts", Expose: "expose", Share: "share", Publish: "publish", Chunk: "chunk",
		Post: "post", Completion: "completion", TrySend: "trysend"}
	if int(k) >= len(names) || k == 0 {
		return "no kind"
	}
	return names[k]
}

// Unknown is the To of a step whose other end the Script does not wrap. It is also the To of a
// Share and of a Publish, which have no other end.
const Unknown = -1

// A Step is one event to which rules can apply. Options.Counts gets it as its argument.
type Step struct {
	Kind     StepKind
	From, To int    // nodes
	Head     []byte // head of the frame, if the step has one; valid during the call
}

// A Script counts the steps of the Transports that it wraps and applies its rules.
//
// Lock order: locks of Conns before mu. Conns call the Script while they hold their own locks.
// The Script calls no Conn while it holds mu.
type Script struct {
	counts func(Step) bool
	hidden []StepKind

	mu           sync.Mutex // guards the rest; taken last
	rules        []Rule
	matched      []int // for each rule, the number of counted steps that it matches
	fired        []bool
	steps        int
	deaths       map[int]*death   // by the node's number
	servers      map[string]*node // by the address that the node serves
	conns        map[*conn]struct{}
	pendingKills int // number of goroutines of killLater that have not ended
	killsDone    sync.Cond
}

// New returns a Script for one run. Its counters are never reset.
func New(o Options) *Script {
	s := &Script{
		counts:  o.Counts,
		hidden:  o.Hide,
		rules:   o.Rules,
		matched: make([]int, len(o.Rules)),
		fired:   make([]bool, len(o.Rules)),
		deaths:  make(map[int]*death),
		servers: make(map[string]*node),
		conns:   make(map[*conn]struct{}),
	}
	s.killsDone.L = &s.mu
	return s
}

// Steps returns the number of steps counted so far. A suite that cuts at each step must check
// that this number is not 0.
func (s *Script) Steps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps
}

// Matched returns the number of counted steps that match the From and the To of rule number i in
// the Options.
func (s *Script) Matched(i int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.matched[i]
}

// Fired reports whether rule i of the Options has been applied.
func (s *Script) Fired(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fired[i]
}

// count counts a step and returns the numbers of the rules that are due at this step.
//
// A rule is due at most once, because its count of matched steps grows by one with each matching
// step, and so equals the rule's step number only once.
func (s *Script) count(st Step) (due []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil && st.Kind == Chunk || s.counts != nil && !s.counts(st) {
		return nil
	}
	s.steps++
	for i, r := range s.rules {
		if !r.matches(st) {
			continue
		}
		if s.matched[i]++; s.matched[i] == r.step {
			due = append(due, i)
		}
	}
	return due
}

// fire records that a rule has been applied.
func (s *Script) fire(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fired[i] = true
}

// apply applies rule i: it cuts c, or kills the node that has made the step.
func (s *Script) apply(i, from int, c *conn) {
	s.fire(i)
	err := failure(fault.LinkLost, s.rules[i].String(), nil)
	if s.rules[i].action == cut {
		if c != nil {
			c.cut(err)
		}
		return
	}
	s.kill(from, err)
}

// applyDeath kills a node by rule i.
func (s *Script) applyDeath(i, from int) {
	s.fire(i)
	s.kill(from, failure(fault.LinkLost, s.rules[i].String(), nil))
}

// kill fails all present Conns of a node. Conns that the node makes later are cut when they are
// made.
//
// kill records the death first. From then on every Conn of the node returns the death as its
// error. Closing one Conn may make the inner Conn of another fail; that error is not returned.
func (s *Script) kill(from int, err error) {
	s.mu.Lock()
	// The error is stored before the first Conn is closed, so that a dead node reports no other
	// error.
	s.deathOf(from).Store(&err)
	var all []*conn
	for c := range s.conns {
		if c.node.number == from {
			all = append(all, c)
		}
	}
	s.mu.Unlock()
	for _, c := range all {
		c.cut(err)
	}
}

// A death contains the error of a node that has died. It contains nil while the node lives. All
// wrapped Transports with the same number share one death.
//
// Every call of a Conn reads it, without the Script's lock.
type death struct{ atomic.Pointer[error] }

// deathOf returns the death of a node. s.mu is held.
func (s *Script) deathOf(number int) *death {
	g := s.deaths[number]
	if g == nil {
		g = new(death)
		s.deaths[number] = g
	}
	return g
}

// died reports whether a rule has killed the node.
func (n *node) died() bool { return n.death.Load() != nil }

// register adds c to the Conns that fail when their node dies. It returns false if the node is
// dead.
//
// The caller then cuts the Conn at once.
func (s *Script) register(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.node.died() {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

// unregister removes a Conn that is closed.
func (s *Script) unregister(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// failure returns a fault.Error of this package. Rank is -1, because a transport does not know
// ranks.
func failure(k fault.Kind, op string, err error) error {
	return &fault.Error{Kind: k, Op: "flaky: " + op, Rank: -1, Err: err}
}

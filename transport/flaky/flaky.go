// Package flaky injects faults into a Transport by a script: at the k-th step it cuts a Conn, lets
// a whole node die, delays a frame or corrupts it. A suite runs once without a rule to count the
// steps, and then once for each k.
//
//	script := flaky.New(flaky.Options{Rules: []flaky.Rule{flaky.Cut(flaky.Within, 7).From(0)}})
//	nodes[i].Transport = script.Wrap(nodes[i].Transport, i)
//
// A step is a frame that is sent, or one use of an ability: a write into exposed memory, a frame in
// parts or sent inline, an Expose, a Share, a flag set in shared memory. If Options.Counts asks for
// them, a part of a body that arrives by itself is a step, and so are the work requests and
// completions of a software device that calls Device. A node is a wrapped Transport; its number is
// the caller's choice, usually the rank. Options.Counts limits which steps are counted, so that a
// suite can leave out handshakes and heartbeats.
//
// What the wrapped value lacks, or Options.Hide names, is refused; see abilities.go.
//
// The Script learns which node an accepted Conn leads to by letting one Dial at a time reach each
// node. Both ends must therefore be wrapped by one Script, in one process. Towards other nodes a
// rule's To never matches, and a cut Within or After a frame happens as soon as the frame has been
// sent.
//
// The other end may or may not see a frame into memory with the ID transport.NoNotify. A cut Before
// or Within such a frame happens as it is sent, and a cut After it when it is Done, both at the
// sending end.
//
// A Script, and everything that it wraps, may be used concurrently. Unlike the wires, it allocates
// for each frame.
package flaky

import (
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
)

// Options configure a Script. The zero Options count every step and inject nothing.
type Options struct {
	Rules []Rule
	// Counts reports whether a step is counted. It is called for the steps in order, one at a time;
	// it must be short, and must not call the Script. nil counts all steps except chunks.
	Counts func(Step) bool
	Hide   []StepKind // abilities to refuse, by the kind of their step; for Parts bodies are joined
}

// A StepKind is the kind of a Step.
type StepKind uint8

// The kinds of steps.
const (
	Frame      StepKind = iota + 1 // Send
	Write                          // Send into exposed memory
	Parts                          // Send of a frame in parts, also into exposed memory
	Expose                         // Expose
	Share                          // Share
	Publish                        // a flag set in what was shared
	Chunk                          // a part of a body that arrives before the rest; the wire's timing decides how many there are
	Post                           // a work request that a device is about to carry out; see Device
	Completion                     // a completion that a device is about to queue; see Device
	TrySend                        // TrySend, also if it refuses and Send sends the frame
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

// Unknown is the To of a step whose other end the Script does not wrap, and of a Share and a
// Publish, which have no other end.
const Unknown = -1

// A Step is one event that rules can apply to, as Options.Counts sees it.
type Step struct {
	Kind     StepKind
	From, To int    // nodes
	Head     []byte // of a frame; valid during the call
}

// A Script counts the steps of the Transports that it wraps and applies its rules.
//
// The lock is taken last: Conns call the Script while they hold their own locks, and the Script
// calls no Conn while it holds its lock.
type Script struct {
	counts func(Step) bool
	hidden []StepKind

	mu           sync.Mutex // guards the rest; taken last
	rules        []Rule
	matched      []int // for each rule, the counted steps that it matches
	fired        []bool
	steps        int
	deaths       map[int]*death   // by the node's number
	servers      map[string]*node // by the address they serve
	conns        map[*conn]struct{}
	pendingKills int // running kills of killLater
	killsDone    sync.Cond
}

// New makes a Script for one run; its counters are not reset.
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

// Steps returns how many steps have been counted. A suite that cuts at each of them must check that
// it is not 0.
func (s *Script) Steps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps
}

// Matched returns how many of the counted steps rule i of the Options matches by its From and To.
func (s *Script) Matched(i int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.matched[i]
}

// Fired reports whether rule i of the Options has done what it says.
func (s *Script) Fired(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fired[i]
}

// count counts a step and returns the rules that are due at it, by number.
//
// A rule is due at one step in a Script's life: matched grows with each step that the rule matches,
// and passes the rule's number once.
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

// apply cuts c, or lets the node that made the step die, by rule i.
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

// applyDeath lets a node die by rule i.
func (s *Script) applyDeath(i, from int) {
	s.fire(i)
	s.kill(from, failure(fault.LinkLost, s.rules[i].String(), nil))
}

// kill fails all Conns of a node, present and future.
//
// The death is recorded first. From then on every Conn of the node reports it as its error, also
// one whose inner Conn reports something else because the other Conns are closed.
func (s *Script) kill(from int, err error) {
	s.mu.Lock()
	s.deathOf(from).Store(&err) // before the first Conn is closed: a dead node reports nothing
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

// A death is the error by which a node has died; nil while the node lives. All wrapped Transports
// of that number share it.
//
// It is read without the Script's lock, on every call of a Conn.
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

// register adds a Conn to those that die with their node. It returns false if the node is dead.
//
// A Conn that is made after the death is cut at once, by its caller.
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

// failure returns this package's error. A transport does not know ranks, so that Rank is -1.
func failure(k fault.Kind, op string, err error) error {
	return &fault.Error{Kind: k, Op: "flaky: " + op, Rank: -1, Err: err}
}

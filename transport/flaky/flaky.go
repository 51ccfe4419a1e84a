// Package flaky wraps a Transport and breaks it by a script: at the k-th step it
// cuts a Conn, lets a whole node die, delays a frame or corrupts it. Suites run
// once without a rule to count the steps, and then once for each k.
//
//	script := flaky.New(flaky.Options{Rules: []flaky.Rule{flaky.Cut(flaky.Within, 7).From(0)}})
//	nodes[i].Transport = script.Wrap(nodes[i].Transport, i)
//
// A step is a frame that is sent, or one use of an ability: a write into exposed
// memory, a frame sent in parts or at once, an Expose, a Share, a flag published
// in shared memory. A chunk of a frame's body that arrives by itself is one for those
// who ask for it; so are the work requests and the completions of a device in
// software that asks Device about them. A node is a wrapped
// Transport; its number is the caller's, who will take the rank. Only steps that
// Options.Counts wants are counted, so that a suite can, say, leave handshakes
// and heartbeats alone.
//
// An ability is there exactly when what is wrapped has it, and Options.Hide does not
// name it; see abilities.go.
//
// Which node an accepted Conn leads to is learnt by letting only one Dial at a
// time reach each node. So both ends have to be wrapped by one Script, in one
// process; towards others a rule's To never matches, and a cut Within or After a
// frame comes as soon as the frame has been sent.
//
// Of a frame into memory of the id transport.Unheard, which has it for its ID, the other
// end may hear or not. A cut Before or Within it comes as it is sent, one After it as it
// is done, both at the end that sends.
//
// A Script, and all that it wraps, may be used concurrently. Unlike what it
// wraps, it allocates for each frame.
package flaky

import (
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
)

// Options say what a Script does. The zero Options count every step and break
// nothing.
type Options struct {
	Rules []Rule
	// Counts is asked about the steps in the order in which rules count them, one at a
	// time; it is short, and calls nothing of the Script's. nil counts all but chunks.
	Counts func(Step) bool
	Hide   []Kind // abilities, by their step, that what is wrapped shall seem to lack
}

// A Kind is what sort of step a Step is.
type Kind uint8

// The kinds of steps.
const (
	Frame      Kind = iota + 1 // Send
	Write                      // Send into exposed memory
	Parts                      // SendParts, also into exposed memory
	Expose                     // Expose
	Share                      // Share
	Publish                    // a flag set in what was shared
	Chunk                      // a part of a body that has arrived before the rest: as many as the wire's timing makes
	Post                       // a work request that a device is about to carry out; see Device
	Completion                 // a completion that a device is about to queue; see Device
	TrySend                    // SendNow, also where it refuses and Send takes the frame
)

// String is the kind's name.
func (k Kind) String() string {
	names := [...]string{Frame: "frame", Write: "write", Parts: "parts", Expose: "expose", Share: "share", Publish: "publish", Chunk: "chunk",
		Post: "post", Completion: "completion", TrySend: "prompt"}
	if int(k) >= len(names) || k == 0 {
		return "no kind"
	}
	return names[k]
}

// Unknown is the To of a step whose other end the Script does not wrap, and of
// a Share and a Publish, which have none.
const Unknown = -1

// A Step is what Counts is asked about.
type Step struct {
	Kind     Kind
	From, To int    // nodes
	Head     []byte // of a frame; not to be kept
}

// A Script counts the steps of the Transports that it wraps and applies its rules.
type Script struct {
	counts func(Step) bool
	hidden []Kind

	mu           sync.Mutex // guards the rest; taken last
	rules        []Rule
	matched      []int // for each rule, the counted steps that it matches
	fired        []bool
	steps        int
	deaths       map[int]*death   // by the node's number
	servers      map[string]*node // by the address they serve
	conns        map[*conn]struct{}
	pendingKills int // by buryLater, under way
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

// Steps is how many steps have been counted. A suite that cuts at each of them
// must make sure that it is not 0.
func (s *Script) Steps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps
}

// Matched is how many of the counted steps rule i of the Options matches, by its
// From and To.
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

// fire notes that a rule has done what it says.
func (s *Script) fire(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fired[i] = true
}

// apply cuts c, or lets the node that took the step die, as rule i says.
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

// applyDeath lets a node die, as rule i says.
func (s *Script) applyDeath(i, from int) {
	s.fire(i)
	s.kill(from, failure(fault.LinkLost, s.rules[i].String(), nil))
}

// kill fails all Conns of a node, those to come, too.
func (s *Script) kill(from int, err error) {
	s.mu.Lock()
	s.deathOf(from).Store(&err) // all at once: the dead do not speak of what they see of it
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

// A death holds what a node has died of, and nil while it lives. All wrapped
// Transports of that number share it.
type death struct{ atomic.Pointer[error] }

// deathOf is the grave of a node; s.mu is held.
func (s *Script) deathOf(number int) *death {
	g := s.deaths[number]
	if g == nil {
		g = new(death)
		s.deaths[number] = g
	}
	return g
}

// died reports whether a node has died by a rule.
func (n *node) died() bool { return n.death.Load() != nil }

// register takes a Conn among those that die with their node; false when the node
// is dead already.
func (s *Script) register(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.node.died() {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Script) unregister(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// failure is this package's error. A transport does not know ranks: Rank is -1.
func failure(k fault.Kind, op string, err error) error {
	return &fault.Error{Kind: k, Op: "flaky: " + op, Rank: -1, Err: err}
}

package membership

import "fmt"

// A Time is a moment, in nanoseconds since some start.
type Time int64

// A Span is a length of time, in nanoseconds.
type Span int64

// Units of Span.
const (
	Millisecond Span = 1e6
	Second      Span = 1e9
)

// String shows a span in milliseconds.
func (d Span) String() string { return fmt.Sprintf("%dms", d/Millisecond) }

// The waits that are not configured.
const (
	RefuteTimeout = 300 * Millisecond // for a sign of life of a rank in doubt
	ResolveDelay  = 50 * Millisecond  // for verdicts that cross on their way
	OverlayWait   = 300 * Millisecond // for links that are about to be, before a verdict settles
	RedialTimeout = 750 * Millisecond // for a link that broke to be there again
	PeerDialWait  = Second            // for a link that the peer should dial
	GoodbyeDelay  = 100 * Millisecond // before links are replaced: goodbyes come in bunches
	AnswerTimeout = Second            // for an answer
	RelayDelay    = 600 * Millisecond // before a neighbour answers for a silent rank
	// secondhandDelay is how much later a rank announces what others saw first-hand.
	secondhandDelay = 100 * Millisecond
	// freshLinkTime protects a fresh link from news about the one before it.
	freshLinkTime = Second
)

// A Config says who this rank is.
type Config struct {
	Me, Size  int
	Host      string
	Joined    bool // all ranks are known to have started: one that cannot be reached is in doubt
	Heartbeat Span
	Silence   Span // after which a link counts as broken
}

// status is what is known of a rank.
type status uint8

const (
	unknown status = iota // not heard of yet
	alive
	departed // has closed in order
	dead     // is gone for good
)

// A rank is what this rank knows of another, or of itself.
type rank struct {
	status     status
	exiting    bool // has announced its own end
	host       string
	lastAlive  Message // the last Here; Seq 0: none yet
	bye        Message // Seq 0: none
	seen       window
	suspicions []suspicion
	link       link
}

// present reports whether the rank stands in the circle.
func (r *rank) present() bool { return (r.status == unknown || r.status == alive) && !r.exiting }

// gone reports whether nothing more is expected of the rank.
func (r *rank) gone() bool { return r.status == departed || r.status == dead }

// A Machine is one rank's view of the job. It has one owner.
type Machine struct {
	cfg         Config
	callerClock Time // the caller's, at the last Step
	now         Time // lived through; all other Times are measured by it
	next        Time // when to look again
	begun       bool
	changed     bool // something was decided that other decisions depend on
	outputs     []Output
	ring        []int    // what circle has listed last
	neighbours  []int    // what wanted has
	heartbeats  []Output // by rank: the Send of a heartbeat, which is always the same; nil: not needed yet

	ranks       []rank
	seq         uint32 // the last flood of this rank's own
	floods      floodLog
	heartbeatAt Time
	overlayAt   Time // links are not replaced before

	failures  failureLog
	questions []openQuestion
	routes    routes
	proxied   []proxyQuestion
	fences    []pendingFence
	fenceRef  uint32 // of the last fence

	ready    bool // all links were up once
	complete bool
	closing  bool
	left     bool
	evicted  bool // the others have given this rank up
}

// New is the state of a rank that has no link yet. It takes its first Step
// before Next means anything.
func New(cfg Config) *Machine {
	s := &Machine{cfg: cfg, ranks: make([]rank, cfg.Size), heartbeats: make([]Output, cfg.Size)}
	if cfg.Joined {
		for r := range s.ranks {
			s.ranks[r].status = alive
		}
	}
	me := &s.ranks[cfg.Me]
	me.status, me.host = alive, cfg.Host
	s.seq++
	me.lastAlive = Message{Kind: Alive, Origin: cfg.Me, Seq: s.seq, Body: []byte(cfg.Host)}
	me.seen.add(s.seq)
	return s
}

// Missing are the ranks that have not come: not heard of at all, or else, when
// all were heard of, without all their links.
func (s *Machine) Missing() []int {
	var away, unlinked []int
	for r := range s.ranks {
		switch k := &s.ranks[r]; {
		case k.gone():
		case k.lastAlive.Seq == 0 && !k.link.open:
			away = append(away, r)
		case k.lastAlive.Code == 0 && r != s.cfg.Me:
			unlinked = append(unlinked, r)
		}
	}
	if away != nil {
		return away
	}
	return unlinked
}

// checkReady tells all ranks, once, that this one has all its links, and the
// caller, once, that all ranks have said so.
func (s *Machine) checkReady() {
	if !s.ready && !s.closing && s.fullyLinked() {
		s.ready = true
		s.flood(Message{Kind: Alive, Code: 1, Body: []byte(s.cfg.Host)})
	}
	if s.complete || !s.ready {
		return
	}
	for r := range s.ranks {
		if k := &s.ranks[r]; k.lastAlive.Code == 0 && !k.gone() {
			return
		}
	}
	s.complete = true
	s.emit(Complete{})
}

// handleAlive takes a rank's Here.
func (s *Machine) handleAlive(m Message) {
	r := &s.ranks[m.Origin]
	if m.Seq < r.lastAlive.Seq {
		return // the later one overtook it
	}
	if r.lastAlive.Seq == 0 {
		r.host = string(m.Body)
		s.emit(Joined{m.Origin, r.host})
	}
	r.lastAlive = m
	s.markAlive(m.Origin)
}

// markAlive notes that a rank has come.
func (s *Machine) markAlive(r int) {
	if s.ranks[r].status == unknown {
		s.ranks[r].status = alive
		s.changed = true
	}
}

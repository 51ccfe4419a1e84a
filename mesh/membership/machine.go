package membership

import "fmt"

// A Time is a moment, in nanoseconds since an arbitrary start.
type Time int64

// A Span is a length of time, in nanoseconds.
type Span int64

// Units of Span.
const (
	Millisecond Span = 1e6
	Second      Span = 1e9
)

// String returns the span in milliseconds.
func (d Span) String() string { return fmt.Sprintf("%dms", d/Millisecond) }

// The waits that are not configured. They bound the time until a failure is reported everywhere. A
// killed rank is reported within 500 ms, of which most is ResolveDelay. A rank that is cut off is
// reported within Silence plus 500 ms, of which the 500 ms are mostly RefuteTimeout and
// ResolveDelay. The tests of the simulation check these bounds.
const (
	RefuteTimeout = 300 * Millisecond // to refute, for a rank that was silent, or has no process
	ResolveDelay  = 50 * Millisecond  // for concurrent failures to arrive, after the first
	OverlayWait   = 300 * Millisecond // for links that are being dialled, in an epoch
	RedialTimeout = 750 * Millisecond // for a broken control link to come up again
	PeerDialWait  = Second            // for a link that the peer should dial
	GoodbyeDelay  = 100 * Millisecond // before the overlay is repaired: goodbyes come in groups
	AnswerTimeout = Second            // for the answers to a question
	RelayDelay    = 600 * Millisecond // before a neighbour answers for a silent rank
	// secondhandDelay is the extra delay before a rank announces a failure that only other ranks
	// have detected.
	secondhandDelay = 100 * Millisecond
	// maxSilence bounds how far the limit on silence is stretched for a peer that runs late.
	maxSilence = 60 * Second
	// minRedialTimeout is the shortest limit of a dial to a suspected rank, for its handshakes.
	minRedialTimeout = 250 * Millisecond
	// maxRedialTimeout is the longest limit of such a dial, which is also the limit of a handshake
	// in package mesh.
	maxRedialTimeout = 5 * Second
	// freshLinkTime is how long a new link is protected from reports about the previous link.
	freshLinkTime = Second
)

// A Config says who this rank is, and how fast failures are detected. It does not change.
type Config struct {
	Me, Size  int
	Host      string
	Joined    bool // all ranks are known to have started, so an unreachable rank is suspected
	Heartbeat Span
	Silence   Span // a link on which nothing is received for this long is silent; see Machine.Limit
	// Redial says that closed links do not prove that a rank is lost, even if all of them close.
	// They are dialled again until the limit. All ranks have the same value.
	Redial bool
}

// A status is what this rank knows about a rank.
//
//	unknown --Alive or a link--> alive --Bye--> departed
//	   |                           |
//	   +------- PeerLost ----------+---> dead
type status uint8

const (
	unknown status = iota // nothing was received from the rank yet
	alive
	departed // has left by Close
	dead     // is gone for good
)

// A rank holds what this rank knows about another rank, or about itself.
type rank struct {
	status     status
	exiting    bool // has announced that it exits
	host       string
	lastAlive  Message // the last Alive; Seq 0: none yet
	bye        Message // its Bye; Seq 0: none
	seen       window
	suspicions []suspicion
	link       link
}

// present reports whether the rank is a member of the ring.
func (r *rank) present() bool { return (r.status == unknown || r.status == alive) && !r.exiting }

// gone reports whether nothing more is expected from the rank.
func (r *rank) gone() bool { return r.status == departed || r.status == dead }

// A Machine is one rank's view of the job. It is not safe for concurrent use: one goroutine owns
// it.
//
//	flag      set when                                          then
//	ready     all links were up once                            an Alive with Code 1 was flooded
//	complete  all ranks have flooded that Alive                 Complete has been emitted
//	ending    Goodbye                                           closing follows
//	closing   ending, and no rank must be dialled first         no suspicions, no other dials
//	left      closing, and all neighbours have acknowledged     Left has been emitted
//	evicted   a PeerLost that names this rank was reported      nothing is announced or dialled
type Machine struct {
	cfg          Config
	callerClock  Time // the caller's time at the last Step
	now          Time // the time that this process has run; all other Times are measured by it
	next         Time // when to Step again
	begun        bool
	late         lateness
	changed      bool // a decision was made on which other decisions depend
	outputs      []Output
	ring         []int    // the memory of ringMembers
	neighbours   []int    // the memory of wantedLinks
	heartbeats   []Output // by rank: the Send of a heartbeat with heartbeatAge; nil: not needed yet
	heartbeatAge Span

	ranks       []rank
	seq         uint32 // of this rank's last flood
	floods      floodLog
	heartbeatAt Time
	overlayAt   Time // the overlay is not repaired before this time

	failures  failureLog
	questions []openQuestion
	routes    routes
	proxied   []proxyQuestion
	fences    []pendingFence
	fenceRef  uint32 // of the last fence

	ready    bool
	complete bool
	ending   bool
	closing  bool
	left     bool
	evicted  bool
}

// New returns the Machine of a rank that has no link yet. The result of Next is undefined before
// the first Step.
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

// Missing returns the ranks that have not started. These are the ranks from which nothing was
// received. If there are none, Missing returns the ranks that do not have all their links.
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

// checkReady floods once that this rank has all its links. When all ranks have flooded this,
// checkReady reports it once. checkReady does not wait for a rank that is gone again, because the
// failure or the goodbye of that rank is reported separately.
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

// handleAlive records a rank's Alive. A rank floods two Alives: the first when it starts, with its
// host, and the second when all its links are up. They may arrive in either order.
func (s *Machine) handleAlive(m Message) {
	r := &s.ranks[m.Origin]
	if m.Seq < r.lastAlive.Seq {
		return // a newer Alive has overtaken this Alive
	}
	if r.lastAlive.Seq == 0 {
		r.host = string(m.Body)
		s.emit(Joined{m.Origin, r.host})
	}
	r.lastAlive = m
	s.markAlive(m.Origin)
}

// markAlive records that a rank has started.
func (s *Machine) markAlive(r int) {
	if s.ranks[r].status == unknown {
		s.ranks[r].status = alive
		s.changed = true
	}
}

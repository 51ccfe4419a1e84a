package membership

import (
	"fmt"
	"math"

	"github.com/tutti-go/tutti/fault"
)

// An Input is something that happened to this rank.
type Input interface{ apply(s *Machine) }

// The inputs.
type (
	// Tick says only that time has passed.
	Tick struct{}
	// LinkUp says that a control link to Rank is open, in place of an earlier one.
	LinkUp struct{ Rank int }
	// LinkDown says that the control link to Rank broke.
	LinkDown struct {
		Rank  int
		Cause string
	}
	// DialFailed answers a Dial. Disowned says that the peer refused this rank
	// because it had been given up.
	DialFailed struct {
		Rank    int
		Evicted bool
		Cause   string
	}
	// Resync says that messages to Rank had to be dropped, and that its link
	// takes more now.
	Resync struct{ Rank int }
	// Received brings a message from the link to From. Its Body must not change,
	// but that of a Heartbeat may once Step has returned.
	Received struct {
		From int
		Msg  Message
	}
	// DataLinkDown says that the data connection to Rank broke.
	DataLinkDown struct {
		Rank  int
		Cause string
	}
	// Announce is a verdict of this rank's own. Leaving says that the rank will
	// be gone right after it, and that nobody need look for another reason.
	Announce struct {
		Err     *fault.Error
		Exiting bool
	}
	// Flood sends Body to every rank.
	Flood struct {
		Code byte
		Body []byte
	}
	// Question puts Body to Ranks; one Answered with the same Ticket follows.
	Question struct {
		ID    uint64
		Ranks []int
		Body  []byte
	}
	// CancelQuestion ends a question early; Answered comes at once, unless it has come.
	CancelQuestion struct{ ID uint64 }
	// Fence asks the neighbours to say when they have handled all that was sent to
	// them so far; one Fenced with the same Ticket follows.
	Fence struct{ ID uint64 }
	// CancelFence ends a fence early; Fenced comes at once, unless it has come.
	CancelFence struct{ ID uint64 }
	// Reply answers an Asked; a nil Body is silence.
	Reply struct {
		To   int
		Ref  uint32
		Body []byte
	}
	// Goodbye says goodbye. Left follows.
	Goodbye struct{}
)

// An Output is something to be done.
type Output interface {
	output()
	fmt.Stringer
}

// The outputs.
type (
	// Send puts Msg on the link to To. A Heartbeat's Body is left to the caller.
	Send struct {
		To  int
		Msg Message
	}
	// Dial opens a control link to Rank; LinkUp or DialFailed follows.
	Dial struct{ Rank int }
	// Cut closes the link to Rank once what was sent on it is out.
	Cut struct{ Rank int }
	// Report tells the layer above a verdict.
	Report struct{ Err *fault.Error }
	// Departed tells the layer above that Rank has closed in order.
	Departed struct{ Rank int }
	// Joined tells the host of a rank.
	Joined struct {
		Rank int
		Host string
	}
	// Complete says, once, that every rank has all its links or is gone again.
	Complete struct{}
	// Deliver brings a flood to the layer above.
	Deliver struct {
		From int
		Code byte
		Body []byte
	}
	// Asked brings a question; Reply answers it.
	Asked struct {
		From int
		Ref  uint32
		Body []byte
	}
	// Answered ends a question.
	Answered struct {
		ID      uint64
		Answers []RankAnswer
	}
	// Fenced ends a fence: the neighbours have handled what was sent before it, or
	// are out of reach.
	Fenced struct{ ID uint64 }
	// Left says that all neighbours have heard this rank's goodbye, or are gone.
	Left struct{}
)

// A RankAnswer is what became of a question to one rank. Body is nil unless the
// rank said something.
type RankAnswer struct {
	Rank   int
	Body   []byte
	Last   string
	Silent Span
}

func (Send) output()     {}
func (Dial) output()     {}
func (Cut) output()      {}
func (Report) output()   {}
func (Departed) output() {}
func (Joined) output()   {}
func (Complete) output() {}
func (Deliver) output()  {}
func (Asked) output()    {}
func (Answered) output() {}
func (Fenced) output()   {}
func (Left) output()     {}

// Step tells the State what happened, and when, by a clock that never runs
// backwards. The Outputs are to be carried out in order; the slice is valid until
// the next Step.
func (s *Machine) Step(now Time, in Input) []Output {
	s.outputs = s.outputs[:0]
	s.advance(now)
	in.apply(s)
	s.next = s.now + Time(s.cfg.Heartbeat) // so that a gap is noticed
	// One decision may open the way for another; each opens it only once.
	for round := 0; round == 0 || s.changed && round < maxRounds; round++ {
		s.changed = false
		s.decide()
	}
	return s.outputs
}

// maxRounds stops a State that contradicts itself; none is known to.
const maxRounds = 64

// decide does all that is due. Each part notes when it wants to look again.
func (s *Machine) decide() {
	s.findSilent()
	s.checkReady()
	s.confirmSuspicions()
	s.announceNext()
	s.resolveEpoch()
	s.maintainOverlay()
	s.sendHeartbeats()
	s.endQuestions()
	s.checkFences()
	s.checkLeft()
}

// Next is how long the State can wait for its next Step: a Tick, if nothing else
// happens before.
func (s *Machine) Next() Span { return Span(max(0, s.next-s.now)) }

// advance moves the lived time. A gap much longer than Next asked for means that
// this process did not run, and does not count against anybody else.
func (s *Machine) advance(now Time) {
	if !s.begun {
		s.begun, s.callerClock = true, now
	}
	gap := max(0, now-s.callerClock)
	s.callerClock += gap
	s.now += min(gap, 2*Time(s.cfg.Heartbeat))
}

// reached reports whether t has come, and has the State look again at t if not.
func (s *Machine) reached(t Time) bool {
	if t <= s.now {
		return true
	}
	s.next = min(s.next, t)
	return false
}

func (s *Machine) emit(o Output) { s.outputs = append(s.outputs, o) }

func (Tick) apply(*Machine) {}

// never is later than any moment.
const never = Time(math.MaxInt64)

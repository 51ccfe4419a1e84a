package membership

import (
	"fmt"
	"math"

	"github.com/tutti-go/tutti/fault"
)

// An Input is an event of this rank.
type Input interface{ apply(s *Machine) }

// The inputs.
type (
	// Tick only says that time has passed.
	Tick struct{}
	// LinkUp says that a control link to Rank is open. The new link replaces an earlier link.
	LinkUp struct{ Rank int }
	// LinkDown says that the control link to Rank broke. Stalled says that this rank has closed it,
	// because Rank had read nothing for the caller's limit.
	LinkDown struct {
		Rank    int
		Stalled bool
		Cause   string
	}
	// DialFailed answers a Dial. Evicted says that the peer refused this rank because it has marked
	// this rank dead, and Gone that it did so because one of the two ranks has closed. NoProcess
	// says that no process listens at the peer's address.
	DialFailed struct {
		Rank      int
		Evicted   bool
		Gone      bool
		NoProcess bool
		Cause     string
	}
	// Resync says that messages to Rank were dropped because its queue was full, and that the queue
	// has room again.
	Resync struct{ Rank int }
	// Received is a message from the link to From. Its Body must never change, except the Body of a
	// Heartbeat, which may change once Step has returned.
	Received struct {
		From int
		Msg  Message
	}
	// DataLinkDown says that the data connection to Rank broke.
	DataLinkDown struct {
		Rank  int
		Cause string
	}
	// Announce is a failure that this rank announces. Exiting says that the rank exits right after
	// the announcement, which then explains its broken links.
	Announce struct {
		Err     *fault.Error
		Exiting bool
	}
	// Flood sends Body to every rank.
	Flood struct {
		Code byte
		Body []byte
	}
	// Question asks the ranks in Ranks for an answer to Body. One Answered with the same ID
	// follows. Code selects the part of the other rank that answers. It is opaque here.
	Question struct {
		ID    uint64
		Ranks []int
		Code  byte
		Body  []byte
	}
	// CancelQuestion ends a question early: Answered follows at once, unless it was emitted before.
	CancelQuestion struct{ ID uint64 }
	// Fence asks the neighbours to acknowledge all messages that were sent to them so far. One
	// Fenced with the same ID follows.
	Fence struct{ ID uint64 }
	// CancelFence ends a fence early: Fenced follows at once, unless it was emitted before.
	CancelFence struct{ ID uint64 }
	// Reply answers an Asked; a nil Body declines.
	Reply struct {
		To   int
		Ref  uint32
		Body []byte
	}
	// Goodbye begins the orderly close of this rank. Left follows.
	Goodbye struct{}
)

// An Output is an action for the caller to carry out.
type Output interface {
	output()
	fmt.Stringer
}

// The outputs.
type (
	// Send puts Msg on the link to To. The caller fills in the Body of a Heartbeat.
	Send struct {
		To  int
		Msg Message
	}
	// Dial opens a control link to Rank; LinkUp or DialFailed follows.
	Dial struct{ Rank int }
	// Cut closes the link to Rank once all messages on it have been sent.
	Cut struct{ Rank int }
	// Report passes a failure to the layer above.
	Report struct{ Err *fault.Error }
	// Departed reports the orderly close of Rank to the layer above.
	Departed struct{ Rank int }
	// Joined reports the host of a rank.
	Joined struct {
		Rank int
		Host string
	}
	// Complete reports, once, that every rank has all its links or is gone again.
	Complete struct{}
	// Deliver passes a flood to the layer above.
	Deliver struct {
		From int
		Code byte
		Body []byte
	}
	// Asked passes a question to the caller or to the layer above it, by the Code of the Question;
	// Reply answers it.
	Asked struct {
		From int
		Ref  uint32
		Code byte
		Body []byte
	}
	// Answered ends a question.
	Answered struct {
		ID      uint64
		Answers []RankAnswer
	}
	// Fenced ends a fence: each neighbour has handled all messages that were sent before the fence,
	// or is unreachable.
	Fenced struct{ ID uint64 }
	// Left reports that all neighbours have acknowledged this rank's goodbye, or are gone.
	Left struct{}
)

// A RankAnswer is the answer of one rank to a question. Body is nil unless the rank answered
// itself. If the rank was silent, Last and Silent hold what a neighbour knows about it.
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

// Step handles one Input. The argument now is the current time of a clock that never runs
// backwards. First Step adds the time since the last Step, then it applies the Input, then it runs
// all decisions until none of them changes anything. The caller must carry out the Outputs in
// order. The slice is valid until the next Step.
func (s *Machine) Step(now Time, in Input) []Output {
	s.outputs = s.outputs[:0]
	s.advance(now)
	in.apply(s)
	s.next = s.now + Time(s.cfg.Heartbeat) // so that advance notices a gap
	// One decision may enable another, so they run until nothing changes.
	for round := 0; round == 0 || s.changed && round < maxRounds; round++ {
		s.changed = false
		s.decide()
	}
	return s.outputs
}

// maxRounds bounds the rounds of a Step, in case decisions contradict each other. No such case is
// known.
const maxRounds = 64

// decide runs all decisions once: silent links, readiness, suspicions, failures, the overlay,
// heartbeats, questions, fences, the goodbye. Detection comes before its consequences. Each
// decision calls the method reached to record when it must run again.
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
	s.sendGoodbye()
	s.checkLeft()
}

// Next returns how long the caller may wait before the next Step. If no other Input comes first,
// the caller then passes a Tick.
func (s *Machine) Next() Span { return Span(max(0, s.next-s.now)) }

// advance adds the time since the last Step to the running time. A gap that is much longer than the
// time from Next means that this process was suspended. Such a gap counts as two heartbeats, so
// that this rank does not suspect other ranks because of its own pause.
func (s *Machine) advance(now Time) {
	if !s.begun {
		s.begun, s.callerClock = true, now
	}
	gap := max(0, now-s.callerClock)
	late := Span(gap - max(0, s.next-s.now))
	s.callerClock += gap
	s.now += min(gap, 2*Time(s.cfg.Heartbeat))
	s.late.add(s.now, late, s.cfg.Heartbeat/4, s.cfg.Silence)
}

// reached reports whether time t has come. If not, it schedules the next Step for t.
func (s *Machine) reached(t Time) bool {
	if t <= s.now {
		return true
	}
	s.next = min(s.next, t)
	return false
}

// emit appends an Output of this Step.
func (s *Machine) emit(o Output) { s.outputs = append(s.outputs, o) }

func (Tick) apply(*Machine) {}

// The constant never is later than any time that comes.
const never = Time(math.MaxInt64)

package membership

import "fmt"

// A MessageKind says what a Message is. The values are on the wire.
type MessageKind uint8

// The kinds of messages, and how each travels:
//
//	direct   over one link
//	flooded  to every rank, each rank forwarding it once
//	routed   back along the path that the question took
const (
	Heartbeat    MessageKind = iota + 1 // direct; Body: the sender's last call; Age: how late the sender runs
	Alive                               // flooded; Code 1: all its links are up; Body: its host
	Suspected                           // flooded; Origin cannot reach the rank About; see below for Code, Age and Body
	Retracted                           // flooded; Origin reaches the rank About again
	Refute                              // flooded; Origin is alive; About, Ref: the sender and the Seq of the Suspected that this answers
	Failure                             // flooded; Ref: the epoch; Code 1: Origin is exiting; Body: the wire form of the error
	Bye                                 // flooded; Origin leaves by Close
	ByeAck                              // direct; the sender has seen the receiver's Bye
	App                                 // flooded; Code, Body: the layer above's
	Ask                                 // flooded; Code: who answers; Body: a bit per rank asked, then the question
	Answer                              // routed; Origin: the rank asked; About, Ref: the sender and the Seq of the Ask; Code, Age, Body: see below
	FenceRequest                        // direct; Ref: the number of the fence; asks for a FenceAck
	FenceAck                            // direct; Ref: as in the FenceRequest; all messages before it have been handled
	lastKind     = FenceAck
)

// The Codes of a Suspected. Its Age is the time that the rank About has to refute. Its Body is the
// last call that Origin received from the rank About.
const (
	brokenLink  = iota // a control link broke, or could not be opened
	brokenData         // a data connection broke
	silentLink         // a control link is silent; its connection is still open
	noProcess          // a control link broke, and no process listens at the peer's address
	stalledLink        // a control link was closed, because the peer had read nothing for the limit
)

// The Codes of an Answer.
const (
	answerGiven    = iota // Body is the answer of the rank
	answerDeclined        // the rank had no answer
	answerRelayed         // sent by a neighbour: Body is the last call it received, Age the silence since
)

var kindNames = [...]string{
	Heartbeat: "heartbeat", Alive: "alive", Suspected: "suspected", Retracted: "retracted", Refute: "refute", Failure: "failure",
	Bye: "bye", ByeAck: "byeack", App: "app", Ask: "ask", Answer: "answer",
	FenceRequest: "fence-request", FenceAck: "fence-ack",
}

// Valid reports whether k is one of the kinds above.
func (k MessageKind) Valid() bool { return k >= Heartbeat && k <= lastKind }

// String returns the kind as transcripts show it.
func (k MessageKind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// flooded reports whether messages of kind k go to every rank.
func (k MessageKind) flooded() bool {
	switch k {
	case Heartbeat, ByeAck, Answer, FenceRequest, FenceAck:
		return false
	}
	return k.Valid()
}

// A Message is what ranks send each other over control links. All holders of a Message share its
// Body, so nothing writes to the Body.
//
//	kind                    handled by               which may
//	Heartbeat               dispatch                 record the peer's last call
//	Alive                   handleAlive              emit Joined, complete the start
//	Suspected               handleSuspected          flood a Refute, cut a link, lead to a failure
//	Retracted, Refute       handleRetracted, ...     end a suspicion
//	Failure                 handleFailure            open or join an epoch
//	Bye, ByeAck             handleBye, dispatch      emit Departed, or Left
//	App                     dispatch                 emit Deliver
//	Ask, Answer             handleAsk, ...           emit Asked, Answered
//	FenceRequest, FenceAck  dispatch, ...            emit Fenced
type Message struct {
	Kind   MessageKind
	Code   byte
	Origin int    // the rank that sent it first
	Seq    uint32 // numbers the floods of Origin, from 1; 0 when not flooded
	About  int    // the other rank that the message concerns; see the kinds
	Ref    uint32 // the Seq or the epoch to which the message refers; see the kinds
	Age    Span   // a length of time; see the kinds. Of an Answer: how long the neighbour has received nothing from Origin
	Body   []byte
}

// String returns the message as transcripts show it.
func (m Message) String() string {
	s := fmt.Sprintf("%v of %d", m.Kind, m.Origin)
	if m.Seq != 0 {
		s += fmt.Sprintf(" #%d", m.Seq)
	}
	switch m.Kind {
	case Suspected, Retracted, Refute, Answer:
		s += fmt.Sprintf(" about %d", m.About)
	}
	if m.Code != 0 {
		s += fmt.Sprintf(" code %d", m.Code)
	}
	if m.Ref != 0 {
		s += fmt.Sprintf(" ref %d", m.Ref)
	}
	if m.Age != 0 {
		s += fmt.Sprintf(" age %v", m.Age)
	}
	if len(m.Body) != 0 {
		s += fmt.Sprintf(" body %s", bodyText(m.Kind, m.Body))
	}
	return s
}

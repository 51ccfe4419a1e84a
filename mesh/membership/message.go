package membership

import "fmt"

// A MessageKind says what a Message is. The values are on the wire.
type MessageKind uint8

// The kinds of messages. Direct ones go over one link; flooded ones to everybody,
// each once; routed ones back along the path of the question.
const (
	Heartbeat    MessageKind = iota + 1 // direct; Body: the sender's last call
	Alive                               // flooded; Code 1: all its links are up; Body: its host
	Suspected                           // flooded; About: whom Origin cannot reach; Code: see below; Body: the last call heard
	Retracted                           // flooded; About: whom Origin reaches again
	Refute                              // flooded; Origin lives; About, Ref: whose Down this answers
	Failure                             // flooded; Ref: the epoch; Code 1: Origin is leaving; Body: the error's wire form
	Bye                                 // flooded; Origin closes in order
	ByeAck                              // direct; the sender has seen the receiver's Bye
	App                                 // flooded; Code, Body: the layer above's
	Ask                                 // flooded; Body: a bit per rank asked, then the question
	Answer                              // routed; About, Ref: whose Ask; Origin: the rank asked; Code: see below; Age; Body
	FenceRequest                        // direct; Ref: of a fence; the receiver has handled all that came before it
	FenceAck                            // direct; Ref: the Mark's
	lastKind     = FenceAck
)

// What a Down's Code says.
const (
	brokenLink = iota // a control link broke, or could not be opened
	brokenData        // a data connection broke
	silentLink        // a control link is silent; its connection is kept for now
)

// What an Answer's Code says.
const (
	answerGiven    = iota // Body is what the rank said
	answerDeclined        // the rank had nothing to say
	answerRelayed         // a neighbour tells: Body is the last call heard, Age the silence since
)

var kindNames = [...]string{
	Heartbeat: "heartbeat", Alive: "alive", Suspected: "suspected", Retracted: "retracted", Refute: "refute", Failure: "failure",
	Bye: "bye", ByeAck: "byeack", App: "app", Ask: "ask", Answer: "answer",
	FenceRequest: "fence-request", FenceAck: "fence-ack",
}

// Valid reports whether k is one of the kinds above.
func (k MessageKind) Valid() bool { return k >= Heartbeat && k <= lastKind }

// String is the kind in a word.
func (k MessageKind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// flooded reports whether messages of kind k go to everybody.
func (k MessageKind) flooded() bool {
	switch k {
	case Heartbeat, ByeAck, Answer, FenceRequest, FenceAck:
		return false
	}
	return k.Valid()
}

// A Message is what ranks tell each other over control links. Its Body is shared
// by all who hold the Message, and never written to.
type Message struct {
	Kind   MessageKind
	Code   byte
	Origin int    // who began it
	Seq    uint32 // numbers the floods of Origin, from 1; 0 when not flooded
	About  int    // the other rank it is about; see the kinds
	Ref    uint32 // the Seq or the epoch it refers to; see the kinds
	Age    Span   // an Answer's: how long nothing was heard of Origin
	Body   []byte
}

// String shows a message in transcripts.
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

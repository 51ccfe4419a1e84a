package membership

import (
	"fmt"
	"strconv"

	"github.com/tutti-go/tutti/fault"
)

// The Outputs as lines of a transcript.

// bodyText returns a body as transcripts show it: a failure as its text, everything else quoted.
func bodyText(k MessageKind, body []byte) string {
	if k == Failure {
		if e, err := fault.ParseWire(body); err == nil {
			return strconv.Quote(e.Error())
		}
	}
	return strconv.Quote(string(body))
}

// String returns text such as "send 3: suspected of 0 #2 about 1".
func (o Send) String() string { return fmt.Sprintf("send %d: %v", o.To, o.Msg) }

// String returns text such as "dial 3".
func (o Dial) String() string { return fmt.Sprintf("dial %d", o.Rank) }

// String returns text such as "cut 3".
func (o Cut) String() string { return fmt.Sprintf("cut %d", o.Rank) }

// String returns "report" and the failure.
func (o Report) String() string { return fmt.Sprintf("report %v", o.Err) }

// String returns text such as "departed 3".
func (o Departed) String() string { return fmt.Sprintf("departed %d", o.Rank) }

// String returns text such as "joined 3 on host-b".
func (o Joined) String() string { return fmt.Sprintf("joined %d on %s", o.Rank, o.Host) }

// String returns "complete".
func (Complete) String() string { return "complete" }

// String returns text such as "deliver 7 from 3:" and the body.
func (o Deliver) String() string {
	return fmt.Sprintf("deliver %d from %d: %q", o.Code, o.From, o.Body)
}

// String returns text such as "asked by 3 ref 2:" and the question.
func (o Asked) String() string { return fmt.Sprintf("asked by %d ref %d: %q", o.From, o.Ref, o.Body) }

// String returns text such as "answered 1:" and the answers.
func (o Answered) String() string { return fmt.Sprintf("answered %d: %v", o.ID, o.Answers) }

// String returns text such as "fenced 1".
func (o Fenced) String() string { return fmt.Sprintf("fenced %d", o.ID) }

// String returns "left".
func (Left) String() string { return "left" }

// String returns the answer, or what is known about a silent rank.
func (x RankAnswer) String() string {
	if x.Body != nil {
		return fmt.Sprintf("%d said %q", x.Rank, x.Body)
	}
	return fmt.Sprintf("%d silent for %v, last in %q", x.Rank, x.Silent, x.Last)
}

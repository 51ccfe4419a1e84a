package comm

import (
	"fmt"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/internal/bridge"
	"github.com/tutti-go/tutti/reduce"
)

// Explain describes how c carries out a collective on vectors of the given number of bytes. The
// lines of the result name the algorithm that runs, the reason, and the cost of the other
// algorithms. For a collective whose vector consists of one part per rank, bytes is the size of all
// parts together. For gatherv, scatterv and alltoallv, whose size a rank may not know, bytes is 0.
// The parameter op is the collective's name in the form that errors use, such as "reduce_scatter";
// other names are fault.Misuse. Explain sends nothing, and any rank may call it at any time.
//
// Times are predicted from α, β and γ of the tuning file, or from rough figures if there is no
// tuning file. The predicted times only order the list; they do not decide which algorithm runs.
func (c *Comm) Explain(op string, bytes int) (string, error) {
	x, err := (*bridged)(c).Explain(op, bytes)
	if err != nil {
		return "", err
	}
	return x.String(), nil
}

// Explain implements bridge.Communicator. It first lists the algorithms that can run, the fastest
// prediction first. It then lists the algorithms that cannot run here, each with the reason. The
// choice itself does not depend on the predictions.
func (b *bridged) Explain(op string, bytes int) (*bridge.Explanation, error) {
	c := (*Comm)(b)
	verb, err := collective.ParseVerb(op)
	if err != nil {
		return nil, c.withOp("explain", err)
	}
	sharing := c.group.HasShared()
	x := &bridge.Explanation{
		Op: op, Bytes: bytes, Ranks: c.Size(), Wire: c.wire,
		Chosen:         c.chosen(verb, bytes, true, sharing),
		NonCommutative: c.chosen(verb, bytes, false, sharing),
		NonBlocking:    c.chosen(verb, bytes, true, false),
	}
	var impossible []bridge.Prediction
	for _, k := range c.rt.model.Estimates(verb, c.Size(), bytes, c.rt.opt.params.Segment, c.wire) {
		remark := ""
		switch {
		case k.Algorithm.NeedsShared() && !sharing:
			remark = "impossible here: the ranks share no memory"
		case k.Algorithm.NeedsShared():
			remark = "blocking calls only"
		case k.Algorithm.Hierarchical() && c.group.Layout().Hosts() == 1:
			remark = "gains nothing on one host"
		case k.Algorithm.Hierarchical():
			remark = "predicted as if every rank had a host to itself"
		case !k.Algorithm.SupportsOrder(reduce.RankOrder):
			remark = "only for operators that commute"
		}
		one := bridge.Prediction{Algorithm: k.Algorithm.Name(), Seconds: k.Seconds, Known: k.Known, Note: remark}
		if k.Algorithm.NeedsShared() && !sharing {
			impossible = append(impossible, one)
		} else {
			x.Predictions = append(x.Predictions, one)
		}
	}
	x.Predictions = append(x.Predictions, impossible...)
	return x, nil
}

// chosen makes the same choice as the method prepare of a plan, and also reports why prepare would
// refuse it. It is a separate function, because prepare works on a plan and a kernel, and Explain
// has neither. A test compares the two.
func (c *Comm) chosen(verb collective.Verb, bytes int, commutative, sharing bool) bridge.Selection {
	k := c.chooser.Choose(verb, bytes, commutative, sharing)
	x := bridge.Selection{Algorithm: k.Algorithm.Name(), Segment: k.Segment}
	if x.Segment == 0 && !k.Algorithm.NeedsShared() {
		x.Segment = c.rt.opt.params.Segment
	}
	switch {
	case k.Algorithm.NeedsShared() && !sharing && c.group.HasShared():
		x.Fails = "carries out blocking calls only"
	case k.Algorithm.NeedsShared() && !sharing:
		x.Fails = "needs memory that the ranks share"
	case !commutative && !k.Algorithm.SupportsOrderOn(reduce.RankOrder, c.group.Layout()):
		x.Fails = "needs an operator that commutes"
	}
	switch k.Reason {
	case collective.Forced:
		x.Reason = "forced"
	case collective.Tuned:
		x.Reason = fmt.Sprintf("rule %d of the tuning file", k.Rule)
	case collective.Default:
		x.Reason = fmt.Sprintf("default rule %d", k.Rule)
	default:
		x.Reason = "no rule covers this call"
	}
	return x
}

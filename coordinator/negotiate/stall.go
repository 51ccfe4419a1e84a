package negotiate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// A Stall is a report entry for a tensor that some ranks have submitted and others have not.
type Stall struct {
	Call      string
	Site      string // the call site of the lowest rank of Submitted
	Waited    Duration
	Submitted []int
	Missing   []RankLocation
}

// A RankLocation is the location of a rank's program. At is empty if the rank did not answer.
type RankLocation struct {
	Rank int
	At   string
}

// String returns one line of a report.
func (s Stall) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s has waited for %.1f s; submitted by ranks %v", s.Call, float64(s.Waited)/float64(Second), s.Submitted)
	if s.Site != "" {
		fmt.Fprintf(&b, " (%s)", s.Site)
	}
	if len(s.Missing) == 0 { // the asked ranks have submitted the tensor or joined meanwhile
		b.WriteString("; no rank is missing any more")
		return b.String()
	}
	b.WriteString("; missing:")
	for i, m := range s.Missing {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, " rank %d", m.Rank)
		if m.At != "" {
			fmt.Fprintf(&b, " at %s", m.At)
		}
	}
	return b.String()
}

// A stallState says whether a pending tensor has been reported. Each tensor is reported once.
type stallState uint8

const (
	stallNone stallState = iota
	stallReported
)

// These bound a report.
const (
	maxStalls     = 16         // number of tensors
	locateTimeout = 1 * Second // time for the ranks to answer
)

// checkStalls reports tensors that have waited for Config.StallWarn. If a tensor has waited for
// Config.StallEnd, checkStalls ends the coordinator. It drops a refused call after the same time.
// It checks the pending tensors only when the oldest tensor may have reached a limit.
//
//	report   reporting  leaves by
//	none     nil        a tensor has stalled: requestLocations asks the missing ranks
//	asking   the list   all asked ranks have answered, or locateDeadline: reportStalls
func (c *Coordinator) checkStalls() {
	if c.ended {
		return
	}
	if c.reporting != nil && (c.locating.Empty() || c.due(c.locateDeadline)) {
		c.reportStalls()
	}
	if !c.due(c.nextStallCheck) {
		return
	}
	c.nextStallCheck = never
	c.dropRefusedIf(func(_ key, f *refusedCall) bool { return c.exceededSince(f.since, c.cfg.StallEnd) })
	var stalled []*pendingTensor
	for p := range c.eachPending {
		if c.exceeds(p, c.cfg.StallEnd) {
			c.abortStalled()
			return
		}
		if p.stall == stallNone && c.exceeds(p, c.cfg.StallWarn) {
			stalled = append(stalled, p)
		}
	}
	switch {
	case stalled != nil && c.reporting == nil:
		c.requestLocations(stalled)
	case stalled != nil: // these tensors are reported after the current report
		c.nextStallCheck = min(c.nextStallCheck, c.locateDeadline+1)
	}
	c.due(c.nextStallCheck)
}

// exceeds reports whether p has waited as long as the limit. If p has not, exceeds schedules the
// next check for the time when p reaches the limit.
func (c *Coordinator) exceeds(p *pendingTensor, limit Duration) bool {
	return c.exceededSince(p.since, limit)
}

// exceededSince is like exceeds, for a wait that began at the time since.
func (c *Coordinator) exceededSince(since Time, limit Duration) bool {
	if limit <= 0 {
		return false
	}
	at := since + Time(limit)
	if at <= c.now {
		return true
	}
	c.nextStallCheck = min(c.nextStallCheck, at)
	return false
}

// requestLocations begins a report. It asks the missing ranks for the locations of their programs.
func (c *Coordinator) requestLocations(stalled []*pendingTensor) {
	slices.SortFunc(stalled, func(a, b *pendingTensor) int {
		if a.since != b.since {
			return int(a.since - b.since)
		}
		return strings.Compare(a.key.name, b.key.name)
	})
	c.locating.clear()
	for _, p := range stalled {
		p.stall = stallReported
		for _, r := range c.missing(p) {
			c.locating.Add(r)
		}
	}
	c.reporting = stalled[:min(len(stalled), maxStalls)]
	c.locations = c.locations[:0]
	c.locateDeadline = c.now + Time(locateTimeout)
	c.nextStep = min(c.nextStep, c.locateDeadline)
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseLocate, Ranks: slices.Collect(c.locating.All)})
}

// receiveLocation records a rank's answer. It drops an answer that comes after the end of the
// report.
func (c *Coordinator) receiveLocation(from int, at string) {
	if c.reporting != nil && c.locating.Has(from) {
		c.locating.Remove(from)
		c.locations = append(c.locations, RankLocation{from, at})
	}
}

// reportStalls ends a report. It outputs the stalls with the answers of the ranks.
func (c *Coordinator) reportStalls() {
	var stalls []Stall
	for _, p := range c.reporting {
		stalls = append(stalls, c.describeStall(p))
	}
	c.reporting = nil
	c.outputs = append(c.outputs, Warn{stalls})
}

// describeStall returns the report entry of a stalled tensor.
func (c *Coordinator) describeStall(p *pendingTensor) Stall {
	v := slices.MinFunc(p.variants, func(a, b variant) int { return a.rank - b.rank })
	s := Stall{Call: v.spec.Call(), Site: v.site, Waited: Duration(c.now - p.since), Submitted: p.ranks()}
	for _, r := range c.missing(p) {
		s.Missing = append(s.Missing, c.locationOf(r))
	}
	return s
}

// locationOf returns a rank's answer, or an empty location.
func (c *Coordinator) locationOf(rank int) RankLocation {
	for _, pl := range c.locations {
		if pl.Rank == rank {
			return pl
		}
	}
	return RankLocation{Rank: rank}
}

// ranks lists the ranks that have submitted p.
func (p *pendingTensor) ranks() (list []int) {
	for at, r := range p.set.ranks {
		if p.submitted.Has(at) {
			list = append(list, r)
		}
	}
	return list
}

// missing lists the ranks that p waits for.
func (c *Coordinator) missing(p *pendingTensor) []int {
	var list []int
	for at, r := range p.set.ranks {
		if !p.submitted.Has(at) && !c.joined.Has(r) {
			list = append(list, r)
		}
	}
	return list
}

// abortStalled ends the coordinator because a tensor has waited for Config.StallEnd. If there are
// several such tensors, the error is about the one whose name comes first. The error names as many
// missing ranks as it can hold.
func (c *Coordinator) abortStalled() {
	for _, p := range c.sortedPending() {
		if p.since+Time(c.cfg.StallEnd) > c.now {
			continue
		}
		s := c.describeStall(p)
		e := &fault.Error{Kind: fault.Timeout, Op: s.Call, Rank: 0, Err: fmt.Errorf("stalled: submitted by ranks %v, and not by the others after %.1f s", s.Submitted, float64(s.Waited)/float64(Second))}
		for _, m := range s.Missing[:min(len(s.Missing), fault.MaxPeers)] {
			e.Peers = append(e.Peers, fault.Peer{Rank: m.Rank, At: m.At})
		}
		c.abort(e)
		return
	}
}

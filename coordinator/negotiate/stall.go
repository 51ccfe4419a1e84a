package negotiate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// A Stall is a tensor that some ranks have submitted and others not.
type Stall struct {
	Call      string
	Site      string // where the lowest of Submitted did
	Waited    Duration
	Submitted []int
	Missing   []RankLocation
}

// A RankLocation is where a rank is now; At is empty when it did not say.
type RankLocation struct {
	Rank int
	At   string
}

// String is one line of a report.
func (s Stall) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s waits for %.1f s; submitted by ranks %v", s.Call, float64(s.Waited)/float64(Second), s.Submitted)
	if s.Site != "" {
		fmt.Fprintf(&b, " (%s)", s.Site)
	}
	if len(s.Missing) == 0 { // they have submitted it, or joined, while they were asked
		b.WriteString("; nobody is missing any more")
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

type stallState uint8

const (
	stallNone stallState = iota
	stallReported
)

// Bounds of a report.
const (
	maxStalls     = 16         // tensors in it
	locateTimeout = 1 * Second // for ranks to say where they are
)

// checkStalls finds tensors that have waited too long. It looks at all that wait
// only when the first of them may have.
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
	case stalled != nil: // after the report that is being made
		c.nextStallCheck = min(c.nextStallCheck, c.locateDeadline+1)
	}
	c.due(c.nextStallCheck)
}

// exceeds reports whether p has waited for a limit, and has l look again when not.
func (c *Coordinator) exceeds(p *pendingTensor, limit Duration) bool {
	return c.exceededSince(p.since, limit)
}

// exceededSince is over of what has waited since then.
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

// requestLocations begins a report: the missing ranks are to say where they are.
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

func (c *Coordinator) receiveLocation(from int, at string) {
	if c.reporting != nil && c.locating.Has(from) {
		c.locating.Remove(from)
		c.locations = append(c.locations, RankLocation{from, at})
	}
}

// reportStalls says what waits, and forgets about it: each tensor is reported once.
func (c *Coordinator) reportStalls() {
	var stalls []Stall
	for _, p := range c.reporting {
		stalls = append(stalls, c.describeStall(p))
	}
	c.reporting = nil
	c.outputs = append(c.outputs, Warn{stalls})
}

func (c *Coordinator) describeStall(p *pendingTensor) Stall {
	v := slices.MinFunc(p.variants, func(a, b variant) int { return a.rank - b.rank })
	s := Stall{Call: v.spec.Call(), Site: v.site, Waited: Duration(c.now - p.since)}
	for at, r := range p.set.ranks {
		if p.submitted.Has(at) {
			s.Submitted = append(s.Submitted, r)
		}
	}
	for _, r := range c.missing(p) {
		s.Missing = append(s.Missing, c.locationOf(r))
	}
	return s
}

func (c *Coordinator) locationOf(rank int) RankLocation {
	for _, pl := range c.locations {
		if pl.Rank == rank {
			return pl
		}
	}
	return RankLocation{Rank: rank}
}

// missing are the ranks that p waits for.
func (c *Coordinator) missing(p *pendingTensor) []int {
	var list []int
	for at, r := range p.set.ranks {
		if !p.submitted.Has(at) && !c.joined.Has(r) {
			list = append(list, r)
		}
	}
	return list
}

// abortStalled ends the coordinator: a tensor has waited beyond the second limit. Of
// those that have, the first by name is told.
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

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
	For       Span
	Submitted []int
	Missing   []Place
}

// A Place is where a rank is now; At is empty when it did not say.
type Place struct {
	Rank int
	At   string
}

// String is one line of a report.
func (s Stall) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s waits for %.1f s; submitted by ranks %v", s.Call, float64(s.For)/float64(Second), s.Submitted)
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
	stallAsked
)

// Bounds of a report.
const (
	maxStalls = 16         // tensors in it
	askWait   = 1 * Second // for ranks to say where they are
)

// judgeStalls finds tensors that have waited too long. It looks at all that wait
// only when the first of them may have.
func (l *Leader) judgeStalls() {
	if l.ended {
		return
	}
	if l.warned != nil && (l.asked.Empty() || l.due(l.askEnd)) {
		l.report()
	}
	if !l.due(l.stallAt) {
		return
	}
	l.stallAt = never
	var stalled []*pending
	for p := range l.each {
		if l.over(p, l.cfg.StallEnd) {
			l.giveUp()
			return
		}
		if p.stall == stallNone && l.over(p, l.cfg.StallWarn) {
			stalled = append(stalled, p)
		}
	}
	switch {
	case stalled != nil && l.warned == nil:
		l.ask(stalled)
	case stalled != nil: // after the report that is being made
		l.stallAt = min(l.stallAt, l.askEnd+1)
	}
	l.due(l.stallAt)
}

// over reports whether p has waited for a limit, and has l look again when not.
func (l *Leader) over(p *pending, limit Span) bool { return l.overAt(p.since, limit) }

// overAt is over of what has waited since then.
func (l *Leader) overAt(since Time, limit Span) bool {
	if limit <= 0 {
		return false
	}
	at := since + Time(limit)
	if at <= l.now {
		return true
	}
	l.stallAt = min(l.stallAt, at)
	return false
}

// ask begins a report: the missing ranks are to say where they are.
func (l *Leader) ask(stalled []*pending) {
	slices.SortFunc(stalled, func(a, b *pending) int {
		if a.since != b.since {
			return int(a.since - b.since)
		}
		return strings.Compare(a.key.name, b.key.name)
	})
	l.asked.clear()
	for _, p := range stalled {
		p.stall = stallAsked
		for _, r := range l.missing(p) {
			l.asked.Add(r)
		}
	}
	l.warned = stalled[:min(len(stalled), maxStalls)]
	l.places = l.places[:0]
	l.askEnd = l.now + Time(askWait)
	l.next = min(l.next, l.askEnd)
	l.down.Items = append(l.down.Items, Item{Kind: ItemWhere, Ranks: slices.Collect(l.asked.All)})
}

func (l *Leader) hearPlace(from int, at string) {
	if l.warned != nil && l.asked.Has(from) {
		l.asked.Remove(from)
		l.places = append(l.places, Place{from, at})
	}
}

// report says what waits, and forgets about it: each tensor is reported once.
func (l *Leader) report() {
	var stalls []Stall
	for _, p := range l.warned {
		stalls = append(stalls, l.stall(p))
	}
	l.warned = nil
	l.outs = append(l.outs, Warn{stalls})
}

func (l *Leader) stall(p *pending) Stall {
	v := slices.MinFunc(p.variants, func(a, b variant) int { return a.rank - b.rank })
	s := Stall{Call: v.tensor.Call(), Site: v.site, For: Span(l.now - p.since)}
	for at, r := range p.set.ranks {
		if p.got.Has(at) {
			s.Submitted = append(s.Submitted, r)
		}
	}
	for _, r := range l.missing(p) {
		s.Missing = append(s.Missing, l.place(r))
	}
	return s
}

func (l *Leader) place(rank int) Place {
	for _, pl := range l.places {
		if pl.Rank == rank {
			return pl
		}
	}
	return Place{Rank: rank}
}

// missing are the ranks that p waits for.
func (l *Leader) missing(p *pending) []int {
	var list []int
	for at, r := range p.set.ranks {
		if !p.got.Has(at) && !l.joined.Has(r) {
			list = append(list, r)
		}
	}
	return list
}

// giveUp ends the coordinator: a tensor has waited beyond the second limit. Of
// those that have, the first by name is told.
func (l *Leader) giveUp() {
	for _, p := range l.all() {
		if p.since+Time(l.cfg.StallEnd) > l.now {
			continue
		}
		s := l.stall(p)
		e := &fault.Error{Kind: fault.Timeout, Op: s.Call, Rank: 0, Err: fmt.Errorf("submitted by ranks %v, and for %.1f s not by the others", s.Submitted, float64(s.For)/float64(Second))}
		for _, m := range s.Missing[:min(len(s.Missing), fault.MaxPeers)] {
			e.Peers = append(e.Peers, fault.Peer{Rank: m.Rank, At: m.At})
		}
		l.abort(e)
		return
	}
}

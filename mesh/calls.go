package mesh

import (
	"context"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh/membership"
)

// Flood sends body to every live rank but this one, once each, in no order that
// floods of other calls could rely on. body is copied. More than MaxFlood bytes,
// or thousands of floods at once, are a bug of the caller's; they are not sent,
// and logged. A rank that takes nothing while half a megabyte is flooded hears
// only the last 64 floods of that time.
func (m *Mesh) Flood(kind byte, body []byte) {
	if len(body) > MaxFlood || m.control.full() {
		m.log.Error("flood dropped: too large, or too many queued", "bytes", len(body), "max", MaxFlood)
		return
	}
	body = append([]byte(nil), body...)
	m.control.post(func(c *control) { c.step(membership.Flood{Code: kind, Body: body}) })
}

// Fence returns when the neighbours have handled, and sent on, all that this rank
// has flooded before, or are out of reach, or ctx has ended. A rank whose process
// may end now calls it, so that its last words do not end with it. It must not be
// called from Events.
func (m *Mesh) Fence(ctx context.Context) { m.control.fence(ctx) }

func (c *control) fence(ctx context.Context) {
	ch := make(chan struct{})
	id := c.lastID.Add(1)
	c.post(func(c *control) {
		c.fences[id] = ch
		c.step(membership.Fence{ID: id})
	})
	select {
	case <-ch:
	case <-c.done:
	case <-ctx.Done():
		c.post(func(c *control) { c.step(membership.CancelFence{ID: id}) })
	}
}

// Ask puts a question to ranks and returns one Answer for each, in their order. It
// returns when all have answered or are known to be gone, after about a second at
// the latest (a silent rank is answered for by its neighbours), or when ctx ends.
// A question of more than MaxFlood bytes is not put, and has no answers.
func (m *Mesh) Ask(ctx context.Context, ranks []int, question []byte) []Answer {
	answers := make([]Answer, len(ranks))
	var known []int
	var index []int
	for i, r := range ranks {
		answers[i].Rank = r
		if r >= 0 && r < m.cfg.Size && len(question) <= MaxFlood {
			known, index = append(known, r), append(index, i)
		}
	}
	if len(known) == 0 {
		return answers
	}
	question = append([]byte(nil), question...)
	for i, x := range m.control.ask(ctx, known, question) {
		a := &answers[index[i]]
		a.Body, a.Last, a.Silent = x.Body, sanitize([]byte(x.Last)), time.Duration(x.Silent)
	}
	return answers
}

// ask puts a question and waits for what the State makes of it.
func (c *control) ask(ctx context.Context, ranks []int, question []byte) []membership.RankAnswer {
	ch := make(chan []membership.RankAnswer, 1)
	id := c.lastID.Add(1)
	c.post(func(c *control) {
		c.questions[id] = ch
		c.step(membership.Question{ID: id, Ranks: ranks, Body: question})
	})
	select {
	case got := <-ch:
		return got
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	c.post(func(c *control) { c.step(membership.CancelQuestion{ID: id}) })
	select {
	case got := <-ch:
		return got
	case <-c.done:
		return nil
	}
}

// Suspect says that this rank's data Conn to rank broke. Within a second a
// verdict follows, about the rank or about the link, unless the rank turns out to
// have said goodbye.
func (m *Mesh) Suspect(rank int, cause error) {
	why := "data connection broke"
	if cause != nil {
		why = cause.Error()
	}
	m.control.post(func(c *control) { c.step(membership.DataLinkDown{Rank: rank, Cause: why}) })
}

// Announce announces e to all ranks, this one included: a panic, an abort, an
// exit without Close. The first verdict wins; of several that cross on their way,
// all ranks hear the one about the lowest rank first, and the others after it. A
// fault.PeerLost that names this rank says that it is about to end: its links may
// break then without another verdict.
func (m *Mesh) Announce(e *fault.Error) {
	if e == nil {
		return
	}
	m.control.post(func(c *control) { c.step(membership.Announce{Err: e}) })
}

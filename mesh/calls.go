package mesh

import (
	"context"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh/membership"
)

// Flood sends body to every other live rank, which gets it at most once. Flood copies body. Floods
// of different ranks may arrive in any order.
//
// Flood drops body and logs an error if body is longer than MaxFlood bytes, or if maxTasks (4096)
// tasks already wait for the control goroutine. Both are bugs of the caller. A neighbour that does
// not read loses floods once maxQueuedBytes (512 KiB) wait for it. When it reads again, this rank
// repeats the last 64 floods of all ranks, so only older floods are lost.
func (m *Mesh) Flood(kind byte, body []byte) {
	if len(body) > MaxFlood || m.control.full() {
		m.log.Error("flood dropped: longer than max, or too many tasks wait for the control goroutine", "bytes", len(body), "max", MaxFlood)
		return
	}
	body = append([]byte(nil), body...)
	m.control.post(func(c *control) { c.step(membership.Flood{Code: kind, Body: body}) })
}

// Fence waits until each neighbour has handled and forwarded all earlier floods of this rank, or is
// unreachable. It also returns when ctx ends. A rank calls Fence before its process exits, so that
// its last floods are not lost. The methods of Events must not call Fence.
func (m *Mesh) Fence(ctx context.Context) { m.control.fence(ctx) }

// fence passes a Fence to the machine and waits for the machine's output Fenced. If ctx ends first,
// fence cancels the Fence, so that the machine keeps no record of it.
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

// Ask sends a question to ranks and returns one Answer for each, in their order. It returns when
// all ranks have answered or are known to be gone, after about a second at the latest, or when ctx
// ends. The neighbours of a silent rank answer for it.
//
// Ask does not send a question of more than MaxFlood bytes, and does not ask ranks that do not
// exist. In both cases, the Answer has only the Rank.
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
	for i, x := range m.control.ask(ctx, known, askEvents, question) {
		a := &answers[index[i]]
		a.Body, a.Last, a.Silent = x.Body, sanitize([]byte(x.Last)), time.Duration(x.Silent)
	}
	return answers
}

// The Code of a question says which part of the Mesh answers it.
const (
	askEvents  = iota // Events.Question
	askTraffic        // links.reportTraffic
)

// ask passes a question to the machine and waits for the machine's output Answered. When ctx ends,
// ask cancels the question, and the machine then returns Answered at once.
func (c *control) ask(ctx context.Context, ranks []int, code byte, question []byte) []membership.RankAnswer {
	ch := make(chan []membership.RankAnswer, 1)
	id := c.lastID.Add(1)
	c.post(func(c *control) {
		c.questions[id] = ch
		c.step(membership.Question{ID: id, Ranks: ranks, Code: code, Body: question})
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

// Suspect reports that this rank's data Conn to rank broke. If the rank still answers over the
// control links, all ranks get a failure that blames the link, within a second. Otherwise they get
// a failure that blames the rank. If the rank has said goodbye, Suspect does nothing.
func (m *Mesh) Suspect(rank int, cause error) {
	why := "data connection broke"
	if cause != nil {
		why = cause.Error()
	}
	m.control.post(func(c *control) { c.step(membership.DataLinkDown{Rank: rank, Cause: why}) })
}

// Announce reports e to all ranks, this rank included. e is a failure such as a panic, an abort or
// an exit without Close. If several failures are announced concurrently, all ranks report the same
// failure first. A lost link is first only if no other failure is announced. Otherwise the failure
// that blames the lowest rank is first. The remaining failures follow.
//
// A fault.PeerLost that names this rank announces that this rank is about to exit. When its links
// break afterwards, no other failure is reported.
func (m *Mesh) Announce(e *fault.Error) {
	if e == nil {
		return
	}
	m.control.post(func(c *control) { c.step(membership.Announce{Err: e}) })
}

package coordinator

import (
	"context"
	"errors"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/tensor"
)

// Messages of the negotiation are named tensors of one step: sending them never
// blocks, and receiving calls back, so that an idle coordinator waits for nothing
// but its channel.
const (
	step     = 0
	upName   = "up"
	downName = "down"
)

// loop acts on what happens while nobody else is at it, and ends the coordinator.
func (co *Coordinator) loop() {
	for {
		select {
		case <-co.wake:
			co.act()
		case <-co.alarm.C:
			co.post(event{in: negotiate.Tick{}})
			co.act()
		case <-co.over:
			co.alarm.Stop()
			co.end()
			return
		}
	}
}

// begin is the first turn.
func (co *Coordinator) begin() {
	co.turn.Store(true)
	co.alarm.Stop()
	co.clock = co.now()
	co.listenAll()
	if co.leader != nil {
		co.beginTuning()
		co.pump()
	}
	co.setAlarm()
	co.turn.Store(false)
	co.act()
}

func (co *Coordinator) now() negotiate.Time { return negotiate.Time(time.Since(co.began)) }

// happened acts on an event, and reports whether that was the end.
func (co *Coordinator) happened(ev *event) bool {
	switch {
	case ev.err != nil:
		return co.step(negotiate.Failed{Err: co.fault(ev.err)})
	case ev.in != nil:
		return co.step(ev.in)
	}
	return co.received(ev.from, ev.body)
}

// received acts on another rank's message.
func (co *Coordinator) received(from int, body []byte) bool {
	if co.leader != nil {
		up, err := negotiate.ParseRequestList(body)
		if err != nil {
			return co.step(negotiate.Failed{Err: co.fault(err)})
		}
		co.listen(from, upName)
		co.lead(negotiate.RequestsReceived{From: from, List: up})
		return co.pump()
	}
	down, err := negotiate.ParseResponseList(body)
	if err != nil {
		return co.step(negotiate.Failed{Err: co.fault(err)})
	}
	co.listen(from, downName)
	return co.step(negotiate.ResponsesReceived{List: down})
}

// step gives the Member an input, and carries out all that follows.
func (co *Coordinator) step(in negotiate.WorkerInput) bool {
	if _, tick := in.(negotiate.Tick); tick {
		co.rings = never // it has rung
		if co.leader != nil {
			co.lead(negotiate.Tick{})
		}
	}
	if b, ok := in.(negotiate.Finished); ok && co.leader != nil {
		co.cost.Cost = b.Bucket.Cost
		co.lead(&co.cost)
		co.sample(b.Bucket)
	}
	over := co.tell(in)
	return co.pump() || over
}

// pump delivers the messages between leader and Member of this rank.
func (co *Coordinator) pump() (over bool) {
	for len(co.local) > 0 {
		m := co.local[0]
		co.local = co.local[1:]
		switch m := m.(type) {
		case *negotiate.RequestList:
			co.lead(negotiate.RequestsReceived{From: 0, List: m})
		case *negotiate.ResponseList:
			over = co.tell(negotiate.ResponsesReceived{List: m}) || over
		}
	}
	co.local = nil
	return over
}

// lead gives the leader an input, and tells all ranks what it says.
func (co *Coordinator) lead(in negotiate.CoordinatorInput) {
	for _, o := range co.leader.Step(co.clock, in) {
		switch o := o.(type) {
		case negotiate.SendAll:
			co.local = append(co.local, o.List)
			body := negotiate.AppendResponseList(nil, o.List)
			for r := 1; r < co.size; r++ {
				co.send(r, downName, body)
			}
		case negotiate.Warn:
			lines := make([]string, len(o.Stalls))
			for i, s := range o.Stalls {
				lines[i] = "tutti: the coordinator: " + s.String()
			}
			co.log.warn(lines...)
		}
	}
	co.due[1] = co.within(co.leader.Next())
}

// tell gives the Member an input; it reports the end.
func (co *Coordinator) tell(in negotiate.WorkerInput) (over bool) {
	if co.sampler != nil {
		co.sampler.told(co.clock, in)
	}
	for _, o := range co.member.Step(co.clock, in) {
		if co.sampler != nil {
			co.sampler.ended(co.clock, o)
		}
		switch o := o.(type) {
		case negotiate.Send:
			if co.leader != nil {
				co.local = append(co.local, o.List)
			} else {
				co.send(0, upName, negotiate.AppendRequestList(nil, o.List))
			}
		case negotiate.Run:
			co.exec.add(job{bucket: o.Bucket, told: co.stamp()})
		case negotiate.SetChanged:
			co.exec.add(job{set: &o})
		case negotiate.Tuned:
			co.switchTo(o.Tuning)
		case negotiate.Joined:
			co.exec.add(job{joined: &o})
		case negotiate.Fail:
			err := co.named(o.Err)
			for _, t := range o.Submissions {
				co.complete(t, err)
			}
		case negotiate.Locate:
			co.post(event{in: negotiate.Location{At: callsite.Now(co.home)}})
		case negotiate.End:
			co.why, over = o.Err, true
		}
	}
	co.due[0] = co.within(co.member.Next())
	return over
}

// named is a fault of the state machines, whose ranks are the communicator's,
// with those of the job.
func (co *Coordinator) named(e *fault.Error) *fault.Error {
	if e == nil {
		return nil
	}
	out := *e
	out.Rank = co.world(co.rank)
	out.Peers = make([]fault.Peer, len(e.Peers))
	for i, p := range e.Peers {
		if p.Rank >= 0 && p.Rank < co.size {
			p.Rank = co.world(p.Rank)
		}
		out.Peers[i] = p
	}
	return &out
}

// fault is an error of the layers below, whose ranks are the job's, for the state
// machines.
func (co *Coordinator) fault(err error) *fault.Error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return &fault.Error{Kind: fault.Canceled, Op: "coordinator", Rank: co.rank, Err: err}
	}
	out := *f
	out.Rank = co.rank
	out.Peers = make([]fault.Peer, len(f.Peers))
	for i, p := range f.Peers {
		for r := range co.size {
			if co.world(r) == p.Rank {
				p.Rank = r
				break
			}
		}
		out.Peers[i] = p
	}
	return &out
}

// end ends the coordinator on this rank. What is being carried out is ended
// first, so that no buffer is used any more when its handle is done.
func (co *Coordinator) end() {
	ctx := context.Background()
	if co.why != nil {
		co.exec.abandon()
	}
	if err := co.exec.finish(); err != nil && co.why == nil {
		co.why = co.fault(err)
	}
	co.mu.Lock()
	co.closed = true
	if co.why != nil {
		co.err = co.named(co.why)
	}
	for _, h := range co.table.all {
		if h != nil {
			h.finish(co.ending(h.what()))
		}
	}
	co.table = table{}
	co.mu.Unlock()
	co.endTimeline()
	co.exec.closeSets()
	co.data.Close(ctx)
	co.nego.Close(ctx)
	close(co.ended)
}

// ending is what a call gets that the end of the coordinator has ended. co.mu is
// held.
func (co *Coordinator) ending(call string) error {
	var f *fault.Error
	if errors.As(co.err, &f) {
		out := *f
		out.Op = call
		return &out
	}
	return fault.New(fault.Closed, call, co.world(co.rank), "the coordinator has been closed")
}

// listenAll posts the receives of the negotiation.
func (co *Coordinator) listenAll() {
	if co.leader == nil {
		co.listen(0, downName)
		return
	}
	for r := 1; r < co.size; r++ {
		co.listen(r, upName)
		co.answerPings(r)
	}
}

func (co *Coordinator) listen(from int, name string) {
	err := comm.OnNamed(co.nego, step, from, name, nil, func(t comm.Tensor, err error) {
		co.post(event{from: from, body: t.Data, err: err})
		co.rouse()
	})
	if err != nil {
		co.post(event{err: err})
	}
}

// send never blocks. That a rank is gone is heard where its messages are awaited.
func (co *Coordinator) send(to int, name string, body []byte) {
	t := comm.Tensor{DType: tensor.Uint8, Shape: []int{len(body)}, Data: body}
	if err := comm.SendNamed(co.nego, step, to, name, t, nil); err != nil {
		co.post(event{err: err})
	}
}

// complete ends a submission.
func (co *Coordinator) complete(t negotiate.SubmissionID, err error) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if h := co.table.take(t); h != nil {
		h.finish(err)
	}
}

// completeAll ends what a Bucket was for.
func (co *Coordinator) completeAll(refs []negotiate.BucketEntry) {
	now := time.Since(co.began)
	co.mu.Lock()
	defer co.mu.Unlock()
	for i := range refs {
		if h := co.table.take(refs[i].Submission); h != nil {
			h.ended = now
			h.finish(nil)
		}
	}
}

// lookup is the handle of a submission under way.
func (co *Coordinator) lookup(t negotiate.SubmissionID) *Handle {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.table.at(t)
}

// A table has the handles of what is under way, by their tickets.
type table struct {
	all  []*Handle // ticket 1 first
	free []negotiate.SubmissionID
}

// add gives a handle a ticket, which is its until take.
func (b *table) add(h *Handle) negotiate.SubmissionID {
	if n := len(b.free); n > 0 {
		h.ticket, b.free = b.free[n-1], b.free[:n-1]
		b.all[h.ticket-1] = h
	} else {
		b.all = append(b.all, h)
		h.ticket = negotiate.SubmissionID(len(b.all))
	}
	return h.ticket
}

// at is the handle with a ticket, or nil.
func (b *table) at(t negotiate.SubmissionID) *Handle {
	if t == 0 || t > negotiate.SubmissionID(len(b.all)) {
		return nil
	}
	return b.all[t-1]
}

func (b *table) take(t negotiate.SubmissionID) *Handle {
	h := b.at(t)
	if h != nil {
		b.all[t-1] = nil
		b.free = append(b.free, t)
	}
	return h
}

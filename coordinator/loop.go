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

// The lists of the negotiation are sent as named tensors of one step. Sending a list never blocks,
// and receiving a list calls a callback. So an idle coordinator waits only on its channel.
const (
	step          = 0
	requestsName  = "requests"
	responsesName = "responses"
)

// loop steps the state machines when no other goroutine does. It ends the coordinator after the
// last step.
func (co *Coordinator) loop() {
	for {
		select {
		case <-co.wake:
			co.processEvents()
		case <-co.timer.C:
			co.post(event{in: negotiate.Tick{}})
			co.processEvents()
		case <-co.stopped:
			co.timer.Stop()
			co.shutdown()
			return
		}
	}
}

// startNegotiation runs the first step. It posts the receives and sends the first settings.
func (co *Coordinator) startNegotiation() {
	co.progress.tryStep() // succeeds, since no other goroutine has the coordinator yet
	co.timer.Stop()
	co.clock = co.now()
	co.listenAll()
	if co.coord != nil {
		co.beginTuning()
		co.deliverLocal()
	}
	co.armTimer()
	co.progress.endStep()
	co.processEvents()
}

// now returns the time since Start on this rank.
func (co *Coordinator) now() negotiate.Time { return negotiate.Time(time.Since(co.started)) }

// handleEvent processes an event and reports whether it was the last event.
func (co *Coordinator) handleEvent(ev *event) bool {
	switch {
	case ev.err != nil:
		return co.stepAll(negotiate.Failed{Err: co.fromWorldRanks(ev.err)})
	case ev.in != nil:
		return co.stepAll(ev.in)
	}
	return co.receive(ev.from, ev.body)
}

// receive processes a list from another rank and posts the receive of the next list. It reports
// whether the coordinator has ended.
func (co *Coordinator) receive(from int, body []byte) bool {
	if co.coord != nil {
		up, err := negotiate.ParseRequestList(body)
		if err != nil {
			return co.stepAll(negotiate.Failed{Err: co.fromWorldRanks(err)})
		}
		co.listen(from, requestsName)
		co.stepCoordinator(negotiate.RequestsReceived{From: from, List: up})
		return co.deliverLocal()
	}
	down, err := negotiate.ParseResponseList(body)
	if err != nil {
		return co.stepAll(negotiate.Failed{Err: co.fromWorldRanks(err)})
	}
	co.listen(from, responsesName)
	return co.stepAll(negotiate.ResponsesReceived{List: down})
}

// stepAll gives the Worker an input. On rank 0 it then delivers the lists between the Worker and
// the Coordinator. It reports whether the coordinator has ended.
func (co *Coordinator) stepAll(in negotiate.WorkerInput) bool {
	if _, tick := in.(negotiate.Tick); tick {
		co.timerAt = never // the timer has fired
		if co.coord != nil {
			co.stepCoordinator(negotiate.Tick{})
		}
	}
	// Return the credit first. The Coordinator may then launch further parts, which deliverLocal
	// delivers below.
	if b, ok := in.(negotiate.Finished); ok && co.coord != nil {
		co.cost.Cost = b.Bucket.Cost
		co.stepCoordinator(&co.cost)
		co.sample(b.Bucket)
	}
	over := co.stepWorker(in)
	return co.deliverLocal() || over
}

// deliverLocal delivers the lists between the Coordinator and the Worker of rank 0 until none is
// left. It reports whether the coordinator has ended.
func (co *Coordinator) deliverLocal() (over bool) {
	for len(co.local) > 0 {
		m := co.local[0]
		co.local = co.local[1:]
		switch m := m.(type) {
		case *negotiate.RequestList:
			co.stepCoordinator(negotiate.RequestsReceived{From: 0, List: m})
		case *negotiate.ResponseList:
			over = co.stepWorker(negotiate.ResponsesReceived{List: m}) || over
		}
	}
	co.local = nil
	return over
}

// stepCoordinator gives the Coordinator an input and sends its responses to all ranks.
func (co *Coordinator) stepCoordinator(in negotiate.CoordinatorInput) {
	for _, o := range co.coord.Step(co.clock, in) {
		switch o := o.(type) {
		case negotiate.SendResponses:
			co.local = append(co.local, o.List)
			body := negotiate.AppendResponseList(nil, o.List)
			for r := 1; r < co.size; r++ {
				co.send(r, responsesName, body)
			}
		case negotiate.Warn:
			lines := make([]string, len(o.Stalls))
			for i, s := range o.Stalls {
				lines[i] = "tutti: coordinator: " + s.String()
			}
			co.log.warn(lines...)
		}
	}
	co.coordDue = co.deadlineIn(co.coord.Next())
}

// stepWorker gives the Worker an input and handles its outputs. It reports whether the coordinator
// has ended.
func (co *Coordinator) stepWorker(in negotiate.WorkerInput) (over bool) {
	if co.sampler != nil {
		co.sampler.noteInput(co.clock, in)
	}
	for _, o := range co.worker.Step(co.clock, in) {
		if co.sampler != nil {
			co.sampler.noteOutput(co.clock, o)
		}
		switch o := o.(type) {
		case negotiate.SendRequests:
			if co.coord != nil {
				co.local = append(co.local, o.List)
			} else {
				co.send(0, requestsName, negotiate.AppendRequestList(nil, o.List))
			}
		case negotiate.Run:
			co.exec.add(job{bucket: o.Bucket, negotiated: co.timestamp()})
		case negotiate.SetChanged:
			co.exec.add(job{set: &o})
		case negotiate.Tuned:
			if int(o.Tuning.Class) < len(classes()) {
				co.exec.add(job{tuned: &o.Tuning})
			}
		case negotiate.JoinDone:
			co.exec.add(job{joined: &o})
		case negotiate.Fail:
			err := co.toWorldRanks(o.Err)
			for _, t := range o.Submissions {
				co.complete(t, err)
			}
		case negotiate.Locate:
			co.post(event{in: negotiate.Location{At: callsite.CurrentLine(co.homeGoroutine)}})
		case negotiate.End:
			co.endCause, over = o.Err, true
		}
	}
	co.workerDue = co.deadlineIn(co.worker.Next())
	return over
}

// toWorldRanks copies an error of the state machines. It replaces the error's ranks, which are
// numbered as in the communicator, by the ranks of the job, which the program knows.
func (co *Coordinator) toWorldRanks(e *fault.Error) *fault.Error {
	if e == nil {
		return nil
	}
	out := *e
	out.Rank = co.worldRank(co.rank)
	out.Peers = make([]fault.Peer, len(e.Peers))
	for i, p := range e.Peers {
		if p.Rank >= 0 && p.Rank < co.size {
			p.Rank = co.worldRank(p.Rank)
		}
		out.Peers[i] = p
	}
	return &out
}

// fromWorldRanks copies an error of the layers below for the state machines. It replaces the ranks
// of the job by the ranks of the communicator.
func (co *Coordinator) fromWorldRanks(err error) *fault.Error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return &fault.Error{Kind: fault.Canceled, Op: "coordinator", Rank: co.rank, Err: err}
	}
	out := *f
	out.Rank = co.rank
	out.Peers = make([]fault.Peer, len(f.Peers))
	for i, p := range f.Peers {
		for r := range co.size {
			if co.worldRank(r) == p.Rank {
				p.Rank = r
				break
			}
		}
		out.Peers[i] = p
	}
	return &out
}

// shutdown ends the coordinator on this rank. It stops the executor first, so that the buffers of a
// handle are no longer in use when the handle is done.
func (co *Coordinator) shutdown() {
	ctx := context.Background()
	if co.endCause != nil {
		co.exec.abandon()
	}
	if err := co.exec.finish(); err != nil && co.endCause == nil {
		co.endCause = co.fromWorldRanks(err)
	}
	if co.endCause != nil {
		co.control.Bridge().ReportLoss(co.toWorldRanks(co.endCause))
	}
	co.mu.Lock()
	co.closed = true
	if co.endCause != nil {
		co.err = co.toWorldRanks(co.endCause)
	}
	for _, h := range co.handles.all {
		if h != nil {
			h.complete(co.closedError(h.describe()))
		}
	}
	co.handles = handleTable{}
	co.mu.Unlock()
	co.endTimeline()
	co.exec.closeSets()
	co.data.Close(ctx)
	co.control.Close(ctx)
	close(co.ended)
}

// closedError returns the error of a call after the end. It is the error that ended the
// coordinator, or says that the coordinator was closed. co.mu is held.
func (co *Coordinator) closedError(call string) error {
	var f *fault.Error
	if errors.As(co.err, &f) {
		out := *f
		out.Op = call
		return &out
	}
	return fault.New(fault.Closed, call, co.worldRank(co.rank), "the coordinator has been closed")
}

// listenAll posts the receives of the negotiation. Rank 0 posts one for each other rank.
func (co *Coordinator) listenAll() {
	if co.coord == nil {
		co.listen(0, responsesName)
		return
	}
	for r := 1; r < co.size; r++ {
		co.listen(r, requestsName)
		co.answerPings(r)
	}
}

func (co *Coordinator) listen(from int, name string) {
	err := co.control.OnNamed(step, from, name, nil, func(t comm.Tensor, err error) {
		co.post(event{from: from, body: t.Data, err: err})
		co.wakeOwner()
	})
	if err != nil {
		co.post(event{err: err})
	}
}

// send sends a list without blocking. If a rank is gone, the receive of its lists reports the loss.
func (co *Coordinator) send(to int, name string, body []byte) {
	t := comm.Tensor{DType: tensor.Uint8, Shape: []int{len(body)}, Data: body}
	if err := co.control.SendNamed(step, to, name, t, nil); err != nil {
		co.post(event{err: err})
	}
}

// complete ends a submission. It does nothing if the submission is not in flight.
func (co *Coordinator) complete(t negotiate.SubmissionID, err error) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if h := co.handles.remove(t); h != nil {
		h.complete(err)
	}
}

// completeAll ends the submissions of a Bucket under one lock.
func (co *Coordinator) completeAll(refs []negotiate.BucketEntry) {
	now := time.Since(co.started)
	co.mu.Lock()
	defer co.mu.Unlock()
	for i := range refs {
		if h := co.handles.remove(refs[i].Submission); h != nil {
			h.completedAt = now
			h.complete(nil)
		}
	}
}

// lookup returns the handle of a submission in flight, or nil.
func (co *Coordinator) lookup(t negotiate.SubmissionID) *Handle {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.handles.at(t)
}

// A handleTable maps submission IDs to the handles in flight. IDs are reused. So the size of the
// table depends on the number of submissions in flight at once, not on the number of all
// submissions.
type handleTable struct {
	all  []*Handle // all[i] is the handle of submission i+1
	free []negotiate.SubmissionID
}

// add gives a handle a submission ID. remove frees the ID.
func (b *handleTable) add(h *Handle) negotiate.SubmissionID {
	if n := len(b.free); n > 0 {
		id := b.free[n-1]
		b.free = b.free[:n-1]
		b.all[id-1] = h
		return id
	}
	b.all = append(b.all, h)
	return negotiate.SubmissionID(len(b.all))
}

// at returns the handle of a submission, or nil.
func (b *handleTable) at(t negotiate.SubmissionID) *Handle {
	if t == 0 || t > negotiate.SubmissionID(len(b.all)) {
		return nil
	}
	return b.all[t-1]
}

// remove frees a submission ID and returns its handle, or nil.
func (b *handleTable) remove(t negotiate.SubmissionID) *Handle {
	h := b.at(t)
	if h != nil {
		b.all[t-1] = nil
		b.free = append(b.free, t)
	}
	return h
}

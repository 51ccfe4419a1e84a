package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// applyWorker submits all requests. If one of them is refused, it submits none.
func (in Submit) applyWorker(w *Worker) {
	if len(in.Requests) == 1 && w.submitCached(&in.Requests[0], in.Submissions[0]) {
		return
	}
	if err := w.validate(in.Requests); err != nil {
		w.outputs = append(w.outputs, Fail{in.Submissions, err})
		var names []TensorName
		for i := range in.Requests {
			names = append(names, in.Requests[i].key().tensorName())
		}
		Refused{names, in.Requests[0].Call(), in.Requests[0].Site, err.Err}.applyWorker(w)
		return
	}
	for i := range in.Requests {
		w.submit(&in.Requests[i], in.Submissions[i])
	}
	if q := &in.Requests[0]; q.GroupSize > 0 || q.Operation.immediate() {
		w.urgent = true
	}
}

// applyWorker reports the call to the Coordinator at the end of this Step, because other ranks may
// wait for it. If this rank has joined or closed, it reports nothing, because no rank waits for its
// calls.
func (in Refused) applyWorker(w *Worker) {
	if w.closed || w.joining {
		return
	}
	names := slices.DeleteFunc(in.Tensors, func(n TensorName) bool { return len(n.Name) > MaxName })
	w.outgoing.Refused = &Refusal{Tensors: names, Err: &fault.Error{
		Kind: fault.Mismatch, Op: in.Call, Rank: w.rank, Peers: []fault.Peer{{Rank: w.rank, Call: in.Call, At: in.Site}},
		Err: fmt.Errorf("the rank has refused its call; make equal and valid calls on all ranks: %w", in.Err),
	}}
	w.markOutgoing()
	w.urgent = true
}

// submitCached submits a request by its cache bit. Nearly all submissions take this path. It is
// possible if all of these conditions hold:
//
//   - the name is cached, is not in flight, and was submitted last with the request of its entry;
//   - this request equals the last request of the name;
//   - this request is not of a group, and this rank has neither joined nor shut down, nor does it
//     remove a set.
//
// Otherwise submitCached changes nothing and returns false, and validate and submit handle the
// request.
func (w *Worker) submitCached(q *TensorRequest, t SubmissionID) bool {
	n := q.memo
	if n == nil || n.removed {
		n = w.tensors[q.key()]
		q.memo = n
	}
	if n == nil || n.submission != 0 || n.cacheID < 0 || !n.matchesCache || w.closed || w.joining || len(w.removing) > 0 || q.GroupSize > 0 || !n.request.same(q) {
		return false
	}
	n.request.Site = q.Site
	n.submission, n.unsent = t, true
	w.markOutgoing()
	w.outgoing.Cached.Add(n.cacheID)
	w.countStep(n)
	w.urgent = w.urgent || q.Operation.immediate()
	return true
}

// validate returns the reason why the requests cannot be submitted, or nil.
func (w *Worker) validate(rs []TensorRequest) *fault.Error {
	var seen map[key]bool
	if len(rs) > 1 {
		seen = make(map[key]bool, len(rs))
	}
	for i := range rs {
		q := &rs[i]
		bad := func(format string, args ...any) *fault.Error {
			return &fault.Error{Kind: fault.Misuse, Op: q.Call(), Rank: w.rank, Err: fmt.Errorf(format, args...)}
		}
		if n := w.tensors[q.key()]; n != nil && n.submission != 0 || seen[q.key()] {
			first := q
			if n != nil && n.submission != 0 {
				first = &n.request
			}
			err := bad("submitted at %s while a submission of that name, %s at %s, is in flight; wait for it first", q.Site, first.Call(), first.Site)
			err.Peers = []fault.Peer{{Rank: w.rank, Call: first.Call(), At: first.Site}}
			return err
		}
		set := w.sets[q.Set]
		switch {
		case !q.valid():
			return bad("name: got %d bytes, want 1 to %d; operator's name: got %d bytes, want at most %d; shape: got %v, want at most %d elements",
				len(q.Name), MaxName, len(q.Op), maxOp, q.Shape, maxElements)
		case w.closed:
			return bad("submitted after Close")
		case w.joining:
			return bad("submitted while this rank has joined; wait for Join first")
		case set == nil || w.removing[q.Set]:
			return bad("the process set was removed; submit nothing to it after RemoveProcessSet")
		case set.indexOf(w.rank) < 0:
			return bad("this rank is not a member of process set %d, of ranks %v", q.Set, set.ranks)
		case q.Root >= len(set.ranks):
			return bad("root: got %d, want 0 to %d", q.Root, len(set.ranks)-1)
		}
		if len(rs) > 1 {
			seen[q.key()] = true
		}
	}
	return nil
}

// submit adds a valid request to outgoing. It adds a bit if the cache has the request, and
// otherwise the full request.
func (w *Worker) submit(q *TensorRequest, t SubmissionID) {
	k := q.key()
	n := w.tensors[k]
	if n == nil {
		n = &tensorState{key: k, cacheID: -1}
		w.tensors[k] = n
	}
	n.submission, n.unsent = t, true
	w.markOutgoing()
	if n.cacheID >= 0 && n.matchesCache && n.request.same(q) {
		n.request.Site = q.Site
		w.outgoing.Cached.Add(n.cacheID)
	} else {
		n.request, n.matchesCache = *q, false
		w.outgoing.Requests = append(w.outgoing.Requests, *q)
	}
	if q.Operation == RemoveSet && len(q.Shape) == 1 {
		w.removing[uint32(q.Shape[0])] = true
	}
	w.countStep(n)
}

// countStep counts a submission of the program's step. A repeated name begins the next step. A step
// is complete, and is sent at once, when it has as many submissions as the previous step. A step
// with fewer submissions is sent when a goroutine waits or the cycle is over.
func (w *Worker) countStep(n *tensorState) {
	if w.step == 0 || n.step == w.step {
		w.step++
		w.stepExpected, w.stepCount = w.stepCount, 0
	}
	n.step = w.step
	w.stepCount++
	if w.stepCount == w.stepExpected {
		w.urgent = true
	}
}

// markOutgoing records that there are requests to send, and the time of the first one.
func (w *Worker) markOutgoing() {
	if !w.hasOutgoing {
		w.hasOutgoing, w.outgoingSince = true, w.now
	}
}

// send outputs the collected requests, in lists of at most maxRequests requests. Join, Shutdown and
// Fault are in the last list, after all submissions.
func (w *Worker) send() {
	requests := w.outgoing
	w.outgoing = RequestList{}
	w.hasOutgoing, w.urgent = false, false
	requests.Ack = w.applied
	// The bits are sent now, so evict can no longer replace them by full requests.
	for id := range requests.Cached.All {
		if n := w.cache[id].state; n != nil {
			n.unsent = false
		}
	}
	for i := range requests.Requests {
		if n := w.tensors[requests.Requests[i].key()]; n != nil {
			n.unsent = false
		}
	}
	// The first list has the bits. The last list has join, shutdown and fault.
	for len(requests.Requests) > maxRequests {
		part := RequestList{Ack: requests.Ack, Cached: requests.Cached, Requests: requests.Requests[:maxRequests], More: true}
		requests.Cached, requests.Requests = nil, requests.Requests[maxRequests:]
		w.outputs = append(w.outputs, SendRequests{&part})
	}
	w.outputs = append(w.outputs, SendRequests{&requests})
}

// maxRequests bounds the requests of one list.
const maxRequests = 512

package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// applyWorker applies a list in three steps. The entries come first, because the responses use
// them. The responses come next. The evictions come last, because a response may still use an
// evicted entry.
func (in ResponsesReceived) applyWorker(w *Worker) {
	d := in.List
	if d.Seq != w.applied+1 {
		w.protocolError("sent response list %d after %d", d.Seq, w.applied)
		return
	}
	w.applied = d.Seq
	for i := range d.Entries {
		w.defineEntry(&d.Entries[i])
	}
	for i := range d.Responses {
		if w.ended {
			return
		}
		w.applyResponse(&d.Responses[i])
	}
	for _, id := range d.Evicted {
		w.evict(id)
	}
}

// protocolError ends the coordinator after an invalid message from the Coordinator. The cause is a
// bug or another version of the program.
func (w *Worker) protocolError(format string, args ...any) {
	err := &fault.Error{Kind: fault.Mismatch, Op: "coordinator", Rank: w.rank, Peers: []fault.Peer{{Rank: 0}}, Err: fmt.Errorf("rank 0 "+format+"; run the same version of the program on all ranks", args...)}
	Failed{err}.applyWorker(w)
}

// defineEntry assigns a tensor to an ID.
func (w *Worker) defineEntry(e *CacheEntry) {
	n := w.tensors[e.Spec.key()]
	at := workerEntry{spec: e.Spec, rows: e.Rows, state: n, set: e.Spec.Set, cost: Cost(e.Spec, e.Rows, 0, 1)}
	if set := w.sets[e.Spec.Set]; e.Rows != nil && (set == nil || len(e.Rows) != len(set.ranks)) {
		w.protocolError("sent %d first dimensions of %s, not one for each rank of its process set", len(e.Rows), e.Spec.Name)
		return
	}
	if e.Transient {
		if n != nil {
			// The request differs from the cache entry of this name, if there is one.
			n.matchesCache = false
		}
		w.transient[e.ID] = &at
		return
	}
	if int(e.ID) >= w.cfg.Cache {
		w.protocolError("used cache ID %d; the cache has %d entries", e.ID, w.cfg.Cache)
		return
	}
	for len(w.cache) <= int(e.ID) {
		w.cache = append(w.cache, workerEntry{})
	}
	// The ID may have belonged to another name. The eviction of that name was acknowledged earlier.
	if old := w.cache[e.ID]; old.state != nil && old.state != n {
		w.dropCacheID(old.state)
	}
	w.cache[e.ID] = at
	// All ranks have agreed on the request of this rank, so the request matches the entry. A rank
	// that is absent or outside the set has no submission, so matchesCache stays false for it.
	if n != nil {
		n.cacheID, n.matchesCache = int(e.ID), n.submission != 0
	}
}

// evict ends an entry. If a bit for the entry has not been sent, the full request replaces the bit.
// The Coordinator still understands a bit in flight, because it keeps evicted entries until this
// Worker has acknowledged the eviction.
func (w *Worker) evict(id uint32) {
	if int(id) >= len(w.cache) {
		return
	}
	n := w.cache[id].state
	w.cache[id] = workerEntry{}
	if n == nil {
		return
	}
	if n.submission != 0 && n.unsent && w.outgoing.Cached.Has(int(id)) {
		w.outgoing.Cached.Remove(int(id))
		w.outgoing.Requests = append(w.outgoing.Requests, n.request)
	}
	w.dropCacheID(n)
}

// dropCacheID removes the cache ID of a name.
func (w *Worker) dropCacheID(n *tensorState) {
	n.cacheID, n.matchesCache = -1, false
	if n.submission == 0 {
		w.remove(n)
	}
}

// entry returns the entry of an ID. It is never nil; the entry of an unknown ID has no spec.
func (w *Worker) entry(id uint32) *workerEntry {
	if int(id) < w.cfg.Cache {
		if int(id) < len(w.cache) {
			return &w.cache[id]
		}
	} else if e := w.transient[id]; e != nil {
		return e
	}
	return &workerEntry{}
}

// applyResponse applies one response of a list.
func (w *Worker) applyResponse(it *Response) {
	switch it.Kind {
	case ResponseRun:
		w.run(it)
	case ResponseFail:
		if len(it.Ranks) == 0 || slices.Contains(it.Ranks, w.rank) {
			w.fail(it.Failed, it.Err)
		}
	case ResponseJoined:
		out := JoinDone{Submission: w.joinSubmission, Last: it.Rank}
		w.joining, w.joinSubmission = false, 0
		w.outputs = append(w.outputs, out)
	case ResponseAddSet, ResponseRemoveSet:
		w.changeSet(it)
	case ResponseLocate:
		for _, r := range it.Ranks {
			if r == w.rank {
				w.outputs = append(w.outputs, Locate{})
			}
		}
	case ResponseAbort:
		own := *it.Err
		own.Rank = w.rank
		w.end(&own)
	case ResponseTune:
		w.tune(it.Tuning)
	case ResponseShutdown:
		w.end(nil)
	}
}

// run makes the Bucket of a response.
func (w *Worker) run(it *Response) {
	total := 0
	for _, s := range it.IDs {
		if total += int(s.Count); total > maxBucketTensors {
			break
		}
	}
	if total == 0 || total > maxBucketTensors || it.Parts < 1 || it.Part >= it.Parts || it.Parts > 1 && total > 1 {
		w.protocolError("launched %d tensors as part %d of %d", total, it.Part, it.Parts)
		return
	}
	b := w.newBucket(it, total)
	for _, s := range it.IDs {
		for i := range s.Count {
			if !w.addEntry(b, s.First+i) {
				return
			}
		}
	}
	w.outputs = append(w.outputs, Run{b})
}

// poolBatch is the number of Buckets and entries that are allocated at once. Many are needed,
// because every part of a large tensor needs a Bucket. A Bucket with more than poolBatch tensors
// has its own list.
const poolBatch = 64

// newBucket returns an empty Bucket with room for the given number of tensors.
func (w *Worker) newBucket(it *Response, tensors int) *Bucket {
	if len(w.bucketPool) == 0 {
		w.bucketPool = make([]Bucket, poolBatch)
	}
	b := &w.bucketPool[0]
	w.bucketPool = w.bucketPool[1:]
	*b = Bucket{Entries: w.newEntries(tensors), Part: it.Part, Parts: it.Parts, Absent: it.Ranks}
	return b
}

// newEntries returns an empty list with room for n entries.
func (w *Worker) newEntries(n int) (entries []BucketEntry) {
	if n > poolBatch {
		for i, spent := range w.releasedEntries {
			if cap(spent) >= n {
				w.releasedEntries = slices.Delete(w.releasedEntries, i, i+1)
				return spent
			}
		}
		return make([]BucketEntry, 0, n)
	}
	if len(w.entryPool) < n {
		w.entryPool = make([]BucketEntry, poolBatch)
	}
	entries, w.entryPool = w.entryPool[:0:n], w.entryPool[n:]
	return entries
}

// maxBucketTensors bounds the number of tensors in a Bucket.
const maxBucketTensors = 1 << 20

// addEntry adds the tensor of an ID to b. It reports a protocol error and returns false if the ID
// is unknown, or if this rank has neither submitted the tensor nor joined.
func (w *Worker) addEntry(b *Bucket, id uint32) bool {
	e := w.entry(id)
	if e.spec == nil {
		w.protocolError("launched ID %d, which is unknown", id)
		return false
	}
	if b.Parts == 1 {
		b.Cost += e.cost
	} else {
		b.Cost += Cost(e.spec, e.rows, b.Part, b.Parts)
	}
	if e.set != World && !w.inSet(e.set) {
		b.Outside = true
		w.releaseTransient(b, id)
		return true
	}
	entry := BucketEntry{Spec: e.spec, Rows: e.rows, state: e.state}
	if e.state != nil {
		entry.Submission = e.state.submission
		e.state.launched = entry.Submission != 0
	}
	if entry.Submission == 0 {
		entry.state = nil
		if !slices.Contains(b.Absent, w.rank) {
			w.protocolError("launched %s, which this rank has not submitted", e.spec.Name)
			return false
		}
	}
	b.Entries = append(b.Entries, entry)
	w.releaseTransient(b, id)
	return true
}

// inSet reports whether this rank is in a process set.
func (w *Worker) inSet(id uint32) bool {
	set := w.sets[id]
	return set != nil && set.indexOf(w.rank) >= 0
}

// releaseTransient drops a transient ID after the last part of its tensor.
func (w *Worker) releaseTransient(b *Bucket, id uint32) {
	if int(id) >= w.cfg.Cache && b.Part+1 == b.Parts {
		delete(w.transient, id)
	}
}

// changeSet adds or removes a process set, and ends this rank's request for the change.
func (w *Worker) changeSet(it *Response) {
	out := SetChanged{ID: it.ID, Name: it.Name, Ranks: it.Ranks}
	if n := w.tensors[key{SetRegistry, it.Name}]; n != nil {
		out.Submission = n.submission
		w.complete(n)
	}
	if it.Kind == ResponseRemoveSet {
		delete(w.sets, it.ID)
		delete(w.removing, it.ID)
	} else if !validRanks(it.Ranks, w.cfg.Size) {
		w.protocolError("made a process set of ranks %v", it.Ranks)
		return
	} else {
		w.sets[it.ID] = newSet(it.Ranks)
	}
	w.outputs = append(w.outputs, out)
}

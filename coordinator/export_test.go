package coordinator

import "fmt"

// Record makes a rank record the tensors that it executes, for Sequence. The record is a timeline
// that is never written.
func Record(co *Coordinator) { co.rec.Store(new(recorder)) }

// Sequence ends Record. It returns the tensors that the rank has executed since Record, in order.
// For each it returns the process set, the name, the part, and the number of tensors in the Bucket.
func Sequence(co *Coordinator) []Carried {
	r := co.rec.Swap(nil)
	times, _ := r.times.All()
	var list []Carried
	for i := range times {
		l := &times[i]
		list = append(list, Carried{l.tensor.Set, fmt.Sprintf("%s part %d of %d, of %d together", l.tensor.Call(), l.part, l.parts, l.fusedTensors)})
	}
	return list
}

// A Carried is one tensor, or part of one, that a rank has executed.
type Carried struct {
	Set  uint32
	What string
}

// Fail ends the coordinator on all ranks with an error that names ranks of the job.
func Fail(co *Coordinator, err error) {
	co.post(event{err: err})
	co.processEvents()
}

// InWait reports whether a goroutine waits for a handle.
func InWait(h *Handle) bool {
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	return h.waiters != nil
}

// Rank returns the rank in the communicator that Start was given.
func (co *Coordinator) Rank() int { return co.rank }

// Ranks returns the ranks of a process set, in order.
func (s *ProcessSet) Ranks() []int { return s.ranks }

package rendezvous

import "sync"

// The bounds of a staticPlan.
const (
	recursAfter = 3       // steps without growth after which a tensor counts as recurring
	maxWatched  = 1 << 12 // the most tensors that a plan watches
)

// A staticPlan prepares buffers for tensors that recur. It watches the first steps of each tensor,
// and prepares a receive when the tensor has come at three steps without growing. Meituan's
// TensorFlow calls this static allocation. A plan is a policy above PrepareNamed: it does not
// depend on how tensors are sent. It watches only receives without a buffer, because with a buffer
// the program has already decided where the tensor goes.
//
// The life of one tensor in the plan:
//
//	watched   observe counts its steps; it has no buffer (room is 0)
//	reserved  reserve has set room; the caller is preparing the receive, without any lock
//	prepared  commit has stored the receive
//	outgrown  a larger tensor has come three times: reserve again, for its size
//	refused   cancel has returned the reservation; watched, until the tensor grows
//
// The buffers are allocated once and stay until their context ends. The field limit bounds their
// size in bytes.
//
// The methods may be called concurrently. The plan's lock comes after the engine's lock in the lock
// order, because drop is called with the engine's lock held. The plan never calls the engine while
// it holds its lock.
type staticPlan struct {
	mu       sync.Mutex
	limit    int64 // bytes of buffers
	reserved int64
	tensors  map[planKey]*recurring
}

// planKey identifies a recurring tensor: it is the same at every step.
type planKey struct {
	context uint64
	source  int
	name    string
}

// A recurring holds a plan's state for one tensor.
type recurring struct {
	size  int    // the largest so far
	steps int    // steps seen since it last grew
	last  uint64 // the newest step seen; older ones are not counted
	room  int    // bytes of the tensor's buffer, also while it is being prepared; 0: none
	recv  *PreparedRecv

	// refused is the size for which no receive could be prepared. It is 0 if there was no failure.
	refused int
}

// newStaticPlan returns a plan for at most limit bytes of buffers.
func newStaticPlan(limit int64) *staticPlan {
	return &staticPlan{limit: limit, tensors: make(map[planKey]*recurring)}
}

// observe counts a tensor that has been received.
func (sp *staticPlan) observe(k planKey, step uint64, size int) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	t := sp.tensors[k]
	switch {
	case t == nil:
		if len(sp.tensors) >= maxWatched {
			sp.forget()
		}
		if len(sp.tensors) < maxWatched {
			sp.tensors[k] = &recurring{size: size, steps: 1, last: step}
		}
		return
	case size > t.size:
		t.size, t.steps = size, 1
	case step > t.last:
		t.steps++
	}
	t.last = max(t.last, step)
}

// forget removes the tensors without a buffer, so that names that do not recur leave room for names
// that recur.
func (sp *staticPlan) forget() {
	for k, t := range sp.tensors {
		if t.room == 0 {
			delete(sp.tensors, k)
		}
	}
}

// reserve returns the size of the buffer that a tensor should get now, and the receive that the
// buffer replaces. The size is 0 if the tensor needs no new buffer. The caller ends the reservation
// by commit or cancel.
func (sp *staticPlan) reserve(k planKey) (size int, old *PreparedRecv) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	t := sp.tensors[k]
	if t == nil || t.steps < recursAfter || t.size <= max(t.room, t.refused) || t.size < exposeFrom {
		return 0, nil
	}
	if sp.reserved+int64(t.size-t.room) > sp.limit {
		return 0, nil
	}
	sp.reserved += int64(t.size - t.room)
	t.room, old, t.recv = t.size, t.recv, nil
	return t.size, old
}

// commit stores the receive that was prepared after reserve.
func (sp *staticPlan) commit(k planKey, recv *PreparedRecv) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if t := sp.tensors[k]; t != nil {
		t.recv = recv
	}
}

// cancel returns the bytes of a reservation for which no receive could be prepared. The plan tries
// again only when the tensor has grown, because a try at every step would cost too much.
func (sp *staticPlan) cancel(k planKey) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if t := sp.tensors[k]; t != nil {
		sp.reserved -= int64(t.room)
		t.refused, t.room = t.room, 0
	}
}

// drop removes the tensors of a context that has ended.
func (sp *staticPlan) drop(context uint64) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for k, t := range sp.tensors {
		if k.context == context {
			sp.reserved -= int64(t.room)
			delete(sp.tensors, k)
		}
	}
}

// prepareRecurring prepares the receive of a tensor that recurs, before the program waits for it.
// It runs on the program's goroutine, because it may take long to expose memory. It allocates
// nothing if the Conn cannot expose memory.
func (mc *MatchContext) prepareRecurring(from int, name string) {
	e, p, k := mc.e, mc.e.peers[from], planKey{mc.id, from, name}
	size, old := e.plan.reserve(k)
	if size == 0 {
		return
	}
	if !p.startPlanned(old, size) {
		e.plan.cancel(k)
		return
	}
	recv, err := mc.PrepareNamed(from, name, make([]byte, size))
	if err != nil || p.endRefusedPlan(recv) {
		// The program has prepared a receive itself, or the coming receive fails with the same
		// error.
		e.plan.cancel(k)
		return
	}
	e.plan.commit(k, recv)
}

// startPlanned reports whether a buffer of the plan may be exposed to p. If so, it closes the
// buffer that the new one replaces.
func (p *peer) startPlanned(old *PreparedRecv, size int) bool {
	p.e.mu.Lock()
	defer p.e.unlock()
	x, err := p.exposerForPrepared()
	switch {
	case err != nil:
		remedy, _ := exposeRemedy(err)
		p.warnRefused(err, remedy, size)
		return false
	case x == nil || p.refusedPlan:
		return false
	}
	if old != nil {
		old.stop() // nobody waits for it, because its memory belongs to the plan
	}
	return true
}

// endRefusedPlan reports whether the Conn has refused to expose a buffer of the plan. In that case
// it closes the buffer. Some transports expose only memory that their own Alloc has returned. The
// plan does not use that memory, because a program may keep Data for longer than the context.
func (p *peer) endRefusedPlan(recv *PreparedRecv) bool {
	p.e.mu.Lock()
	defer p.e.unlock()
	if recv.state != preparedRefused {
		return false
	}
	p.refusedPlan = true
	recv.stop()
	return true
}

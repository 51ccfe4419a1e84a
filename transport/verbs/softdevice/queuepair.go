package softdevice

import (
	"errors"

	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// A SoftQueuePair is a queue pair of a software device. The fabric's mu guards it.
//
//	state    receives, waiting    Send                     left by
//	ready    posted               executes                 fail, push (overrun), Close
//	broken   empty, flushed       errNotReady              Close
//	closed   empty                errNotReady
type SoftQueuePair struct {
	device   *device
	number   uint32
	capacity int // of the completion queue
	notify   func()
	peer     uint32 // 0: not connected
	state    state

	receives []receive          // posted, oldest first
	waiting  []rdma.WorkRequest // posted, but the peer had no receive for the first of them
	done     []rdma.Completion  // oldest first
	armed    bool
	overrun  bool  // a completion was lost
	failure  error // of an asynchronous event
}

type state uint8

const (
	ready state = iota
	broken
	closed
)

type receive struct {
	id  uint64
	mem []byte
}

// inlineBytes is the number of bytes that many devices can send inline.
const inlineBytes = 220

var errNotReady = errors.New("the queue pair is in the error state")

// Local implements rdma.QueuePair.
func (p *SoftQueuePair) Local() rdma.Address { return rdma.Address{QPN: p.number, MTU: 5} }

// Inline implements rdma.QueuePair.
func (p *SoftQueuePair) Inline() int { return inlineBytes }

// Connect implements rdma.QueuePair.
func (p *SoftQueuePair) Connect(peer rdma.Address) error {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	if p.state != ready || p.peer != 0 {
		return errNotReady
	}
	p.peer = peer.QPN
	return nil
}

// Receive implements rdma.QueuePair. A broken queue pair drops receives. Hardware would complete
// them as flushed. The software device does not, because the completion with the first error has
// already told the user that the queue pair is broken.
func (p *SoftQueuePair) Receive(id uint64, r *rdma.Region, mem []byte) error {
	f := p.device.fabric
	f.mu.Lock()
	defer f.unlock()
	if p.state == closed || p.device.find(r.LKey, rdma.AddressOf(mem), len(mem), false) == nil && len(mem) > 0 {
		return errNotReady
	}
	if p.state == broken {
		return nil
	}
	p.receives = append(p.receives, receive{id, mem})
	if peer := f.queuePairs[p.peer]; peer != nil && len(peer.waiting) > 0 && peer.state == ready {
		w := peer.waiting[0]
		peer.waiting = peer.waiting[1:]
		peer.execute(&w)
	}
	return nil
}

// Send implements rdma.QueuePair.
func (p *SoftQueuePair) Send(ws []rdma.WorkRequest) error {
	f := p.device.fabric
	f.mu.Lock()
	defer f.unlock()
	if p.state != ready || p.peer == 0 {
		return errNotReady
	}
	for i := range ws {
		if len(p.waiting) > 0 && p.state == ready {
			p.waiting = append(p.waiting, ws[i])
			continue
		}
		p.execute(&ws[i])
	}
	return nil
}

// execute executes w at both ends, as hardware devices do. mu is held.
func (p *SoftQueuePair) execute(w *rdma.WorkRequest) {
	peer := p.device.fabric.queuePairs[p.peer]
	switch {
	case p.state != ready:
		p.complete(rdma.Completion{ID: w.ID, Status: rdma.Flushed})
	case peer == nil || peer.state != ready || peer.peer != p.number:
		p.fail(rdma.Completion{ID: w.ID, Status: rdma.RetryExceeded})
	case len(w.Mem) > 0 && !w.Inline && p.device.find(w.LKey, rdma.AddressOf(w.Mem), len(w.Mem), false) == nil:
		p.fail(rdma.Completion{ID: w.ID, Status: rdma.LocalProtection})
	case !w.NoImm && len(peer.receives) == 0:
		p.device.fabric.notReady++
		p.waiting = append(p.waiting, *w)
	default:
		p.transfer(w, peer)
	}
}

// transfer copies the bytes of w to the peer, and completes w at both ends. Like hardware, it
// does not check the address of a write of no bytes. mu is held.
func (p *SoftQueuePair) transfer(w *rdma.WorkRequest, peer *SoftQueuePair) {
	var r receive
	if !w.NoImm {
		r = peer.receives[0]
	}
	dst := r.mem
	if w.Write {
		dst = peer.device.find(w.RKey, w.RemoteAddr, len(w.Mem), true)
	}
	switch {
	case w.Write && dst == nil && len(w.Mem) > 0:
		peer.fail(rdma.Completion{ID: r.id, Recv: true, Status: rdma.RemoteAccess})
		p.fail(rdma.Completion{ID: w.ID, Status: rdma.RemoteAccess})
		return
	case !w.Write && len(w.Mem) > len(dst):
		peer.fail(rdma.Completion{ID: r.id, Recv: true, Status: rdma.LocalLength})
		p.fail(rdma.Completion{ID: w.ID, Status: rdma.RemoteInvalid})
		return
	}
	at := p.ask(w, peer)
	if at == BreakBefore || at == BreakWithin {
		if at == BreakWithin && w.Write {
			copy(dst, w.Mem[:len(w.Mem)/2])
		}
		p.fail(rdma.Completion{ID: w.ID, Status: rdma.RetryExceeded})
		return
	}
	copy(dst, w.Mem)
	if !w.NoImm {
		peer.receives = peer.receives[:copy(peer.receives, peer.receives[1:])]
		peer.complete(rdma.Completion{ID: r.id, Recv: true, Write: w.Write, Bytes: len(w.Mem), Imm: w.Imm})
	}
	if at == BreakAfter {
		p.fail(rdma.Completion{ID: w.ID, Status: rdma.RetryExceeded})
	} else if w.Signaled {
		p.complete(rdma.Completion{ID: w.ID})
	}
}

// complete queues c, unless the hook breaks the queue pair first. mu is held.
func (p *SoftQueuePair) complete(c rdma.Completion) {
	at := NoBreak
	if c.Status == rdma.Success {
		at = p.ask(nil, p.device.fabric.queuePairs[p.peer])
	}
	if at == NoBreak || at == BreakAfter {
		p.push(c)
	}
	if at != NoBreak {
		p.fail(rdma.Completion{ID: c.ID, Recv: c.Recv, Status: rdma.Fatal})
	}
}

// push queues c and fires Arm. A full queue loses c, which breaks the queue pair. mu is
// held.
func (p *SoftQueuePair) push(c rdma.Completion) {
	if len(p.done) == p.capacity {
		p.state, p.overrun = broken, true
		return
	}
	p.done = append(p.done, c)
	p.fire()
}

// fire queues the call of the queue pair's notify function, once for each Arm. mu is held.
func (p *SoftQueuePair) fire() {
	if p.armed {
		p.armed = false
		p.device.fabric.notify = append(p.device.fabric.notify, p.notify)
	}
}

// fail breaks the queue pair with its first error, and flushes what is posted. mu is
// held.
func (p *SoftQueuePair) fail(c rdma.Completion) {
	if p.state != ready {
		return
	}
	p.state = broken
	p.push(c)
	for _, w := range p.waiting {
		p.push(rdma.Completion{ID: w.ID, Status: rdma.Flushed})
	}
	p.receives, p.waiting = nil, nil
}

// Poll implements rdma.QueuePair.
func (p *SoftQueuePair) Poll(into []rdma.Completion, _ int) (int, error) {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	if p.overrun {
		return 0, rdma.ErrOverrun
	}
	n := copy(into, p.done)
	p.done = p.done[:copy(p.done, p.done[n:])]
	if n == 0 {
		return 0, p.failure
	}
	return n, nil
}

// Arm implements rdma.QueuePair.
func (p *SoftQueuePair) Arm() error {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	p.armed = true
	return nil
}

// Close implements rdma.QueuePair.
func (p *SoftQueuePair) Close() error {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	p.state, p.peer, p.receives, p.waiting, p.done = closed, 0, nil, nil, nil
	delete(p.device.fabric.queuePairs, p.number)
	return nil
}

package softdevice

import "github.com/tutti-go/tutti/transport/verbs/internal/rdma"

// An Action is a step at which a Fabric calls its hook: a work request before it is executed, or
// the completion of a work request or a receive.
type Action struct {
	From, To   int // the number of the device that acts, and the number of its peer
	Completion bool
	// Message is the message of a work request that has one. It is valid only during the hook.
	Message []byte
}

// Head returns the head of the frame that the message carries. The head follows the message
// header of 40 bytes. The fourth byte of the header is the length of the head.
func (s Action) Head() []byte {
	if len(s.Message) < 40 {
		return nil
	}
	return s.Message[40 : 40+int(s.Message[3])]
}

// A Break is the point within an Action at which a queue pair breaks.
type Break uint8

// The breaks. After each of them the queue pair of the device that acts is in the error state, as
// after a cable has been unplugged. Nothing else that was posted is carried out, and the peer's
// device is not notified.
const (
	NoBreak     Break = iota
	BreakBefore       // a work request is not carried out; a completion is lost
	BreakWithin       // half of a write is in the peer's memory; otherwise like BreakBefore
	// A work request is carried out but fails at this end. A completion is delivered as the last
	// one.
	BreakAfter
)

// SetHook sets the hook that is called before each Action, except for Actions that fail without the
// hook. A nil hook breaks nothing. The hook runs while locks of the Fabric and of Conns are held,
// so it must not call a Fabric or a Conn.
func (f *Fabric) SetHook(hook func(Action) Break) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// ask asks the hook about a work request, or about a completion if w is nil. mu is held.
func (p *SoftQueuePair) ask(w *rdma.WorkRequest, peer *SoftQueuePair) Break {
	hook := p.device.fabric.hook
	if hook == nil || peer == nil {
		return NoBreak
	}
	s := Action{From: p.device.number, To: peer.device.number, Completion: w == nil}
	if w != nil && !w.Write {
		s.Message = w.Mem
	}
	return hook(s)
}

// inject calls change with mu held, and fires all queue pairs that are armed.
func (f *Fabric) inject(change func()) {
	f.mu.Lock()
	defer f.unlock()
	change()
	for _, p := range f.queuePairs {
		p.fire()
	}
}

// RevokeRemoteAccess makes all registered memory inaccessible to peers.
func (f *Fabric) RevokeRemoteAccess() {
	f.inject(func() {
		for _, r := range f.regions {
			r.remote = false
		}
	})
}

// Disconnect removes the address of the peer from the queue pair. Work requests of the peer then
// fail.
func (p *SoftQueuePair) Disconnect() { p.device.fabric.inject(func() { p.peer = 0 }) }

// Fail breaks the queue pair with a completion.
func (p *SoftQueuePair) Fail(c rdma.Completion) { p.device.fabric.inject(func() { p.fail(c) }) }

// FailByEvent breaks the queue pair by an asynchronous event, whose error Poll returns.
func (p *SoftQueuePair) FailByEvent(err error) {
	p.device.fabric.inject(func() { p.state, p.failure = broken, err })
}

// Overrun makes the completion queue lose a completion.
func (p *SoftQueuePair) Overrun() { p.device.fabric.inject(func() { p.overrun = true }) }

// LoseCompletions drops the completions that have not been polled.
func (p *SoftQueuePair) LoseCompletions() { p.device.fabric.inject(func() { p.done = nil }) }

// RefuseWork breaks the queue pair without any completion or notification: the next Send
// fails.
func (p *SoftQueuePair) RefuseWork() {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	p.state = broken
}

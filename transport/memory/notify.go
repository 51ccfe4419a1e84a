package memory

// A notifier is the one goroutine of a Transport. It runs accept and the ready callbacks, so that
// they never run on a sender's goroutine, under its locks or deep in its stack. The goroutine
// starts when the first callback is scheduled. The Transport's mu guards the fields.
//
//	state      ended   stopping   what holds
//	none       nil     false      nothing was ever scheduled
//	running    open    false      the goroutine waits or runs a callback
//	stopping   open    true       it runs what is scheduled, and then ends
//	stopped    closed  true       a wake-up runs on a goroutine of its own
type notifier struct {
	arrivals    []*conn // Conns that peers have dialled and that have not been passed to accept yet
	first, last *conn   // Conns whose ready has to run, linked by nextReady; each at most once
	ended       chan struct{}
	stopping    bool
}

// wakeNotifier wakes the notifier. The first call starts it. t.mu is held.
func (t *Transport) wakeNotifier() {
	if t.notifier.ended == nil {
		t.notifier.ended = make(chan struct{})
		go t.notify()
		return
	}
	t.wake.Signal()
}

// scheduleReady schedules c's ready callback on the notifier. c's link is locked. Once the notifier
// is stopping, each callback gets a goroutine of its own, because no wake-up may be lost.
func (t *Transport) scheduleReady(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := &t.notifier
	if n.stopping {
		go c.fire()
		return
	}
	c.nextReady = nil
	if n.last == nil {
		n.first = c
	} else {
		n.last.nextReady = c
	}
	n.last = c
	t.wakeNotifier()
}

// notify is the notifier's loop. It ends when stopping is set and nothing is scheduled.
func (t *Transport) notify() {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(t.notifier.ended)
	for {
		n := &t.notifier
		switch {
		case len(n.arrivals) > 0:
			t.acceptNext()
		case n.first != nil:
			c := n.first
			n.first = c.nextReady
			if n.first == nil {
				n.last = nil
			}
			t.mu.Unlock()
			c.fire()
			t.mu.Lock()
		case n.stopping:
			return
		default:
			t.wake.Wait()
		}
	}
}

// acceptNext passes the oldest arrival to the function accept. After Close it drops the arrival.
// t.mu is held, but not during the call, so that accept may use the Transport.
func (t *Transport) acceptNext() {
	n := &t.notifier
	c := n.arrivals[0]
	n.arrivals[0] = nil
	n.arrivals = n.arrivals[1:]
	if t.closed {
		return
	}
	accept := t.accept
	t.mu.Unlock()
	accept(c)
	t.mu.Lock()
}

// stopNotifier waits until the notifier has run all scheduled callbacks and has ended.
func (t *Transport) stopNotifier() {
	t.mu.Lock()
	t.notifier.stopping = true
	ended := t.notifier.ended
	t.wake.Signal()
	t.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

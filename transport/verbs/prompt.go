package verbs

import (
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// SendNow implements transport.Prompter: a frame that fits a message, and that nothing
// stands before, is posted from here. Its buffer is the only thing that ends with it, so
// that it asks for no completion but in its turn (signalEvery). The peer's device has
// acknowledged it once a frame behind it is Done; before that, a Close may take it back.
func (c *conn) SendNow(head, body []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.line
	if c.stage != live || c.err != nil || l.err != nil || !c.out.Empty() || !l.room() || len(head) > transport.MaxHead {
		return false
	}
	p, ok := c.flow.prompt(len(head), len(body))
	if !ok {
		return false
	}
	l.posted++
	b := l.buffer(l.send, l.posted)
	p.put(b)
	n := packetLen + copy(b[packetLen:], head)
	n += copy(b[n:], body)
	l.works = append(l.works[:0], work{id: l.posted, signaled: l.isTurn(), mem: b[:n], lkey: l.send.lkey, inline: n <= l.pair.inline()})
	if err := l.pair.send(l.works); err != nil {
		c.unposted(err)
	}
	return true // where it was not posted, the Conn has failed, as it may behind any frame
}

// unposted fails the queue pair that has refused works; mu is held.
func (c *conn) unposted(err error) {
	for c.reap(1) > 0 { // the reason may lie there
	}
	c.line.fail(failure(fault.LinkLost, "post", fmt.Errorf("%s: %w", c.home.device.describe(), err)))
}

// Linger implements transport.Prompter: the device looks so many times for a
// completion, and all else that Progress does is done once.
func (c *conn) Linger(in transport.Sink, looks int) (transport.State, error) {
	if !c.reading.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	state, err := c.progress(in, max(looks, 1))
	c.reading.Store(false)
	if c.spent.Load() {
		c.giveBack()
	}
	return state, err
}

var _ transport.Prompter = (*conn)(nil)

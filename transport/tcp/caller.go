package tcp

import "sync"

// A caller is one goroutine that runs the ready callbacks that are due for a
// reason that no wait can see: bytes lie in a buffer, a Conn failed. The zero
// caller is ready; its goroutine starts with the first callback.
type caller struct {
	mu       sync.Mutex // guards the rest
	bell     sync.Cond
	due      []func()
	ended    chan struct{}
	stopping bool
}

// call has the goroutine run ready. After stop, a goroutine of its own runs it,
// since a wake-up must come.
func (c *caller) call(ready func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		go ready()
		return
	}
	c.due = append(c.due, ready)
	if c.ended == nil {
		c.ended = make(chan struct{})
		c.bell.L = &c.mu
		go c.run()
	}
	c.bell.Signal()
}

// run calls what is due until stop has been called and nothing is.
func (c *caller) run() {
	defer close(c.ended)
	var now []func()
	c.mu.Lock()
	for {
		for len(c.due) == 0 && !c.stopping {
			c.bell.Wait()
		}
		if len(c.due) == 0 {
			c.mu.Unlock()
			return
		}
		now, c.due = c.due, now[:0]
		c.mu.Unlock()
		for i, ready := range now {
			now[i] = nil
			ready()
		}
		c.mu.Lock()
	}
}

// stop returns when all that is due has run. It must not be called by a ready
// callback.
func (c *caller) stop() {
	c.mu.Lock()
	c.stopping = true
	ended := c.ended
	if ended != nil {
		c.bell.Signal()
	}
	c.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

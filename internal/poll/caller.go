package poll

import "sync"

// A Caller is one goroutine that runs the ready callbacks that are due for a
// reason that no wait can see: bytes lie in a buffer, a Conn failed. The zero
// Caller is ready; its goroutine starts with the first callback.
type Caller struct {
	mu       sync.Mutex // guards the rest
	bell     sync.Cond
	due      []func()
	ended    chan struct{}
	stopping bool
}

// Call has the goroutine run ready. After Stop, a goroutine of its own runs it,
// since a wake-up must come.
func (c *Caller) Call(ready func()) {
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

// run calls what is due until Stop has been called and nothing is.
func (c *Caller) run() {
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

// Stop returns when all that is due has run. It must not be called by a ready
// callback.
func (c *Caller) Stop() {
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

package poll

import "sync"

// A Caller is one goroutine that runs the ready callbacks that are due for a
// reason that no wait can see: bytes lie in a buffer, a Conn failed. The zero
// Caller is ready; its goroutine starts with the first callback.
type Caller struct {
	mu        sync.Mutex // guards the rest
	wake      sync.Cond
	callbacks []func()
	done      chan struct{}
	stopping  bool
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
	c.callbacks = append(c.callbacks, ready)
	if c.done == nil {
		c.done = make(chan struct{})
		c.wake.L = &c.mu
		go c.run()
	}
	c.wake.Signal()
}

// run calls what is due until Stop has been called and nothing is.
func (c *Caller) run() {
	defer close(c.done)
	var batch []func()
	c.mu.Lock()
	for {
		for len(c.callbacks) == 0 && !c.stopping {
			c.wake.Wait()
		}
		if len(c.callbacks) == 0 {
			c.mu.Unlock()
			return
		}
		batch, c.callbacks = c.callbacks, batch[:0]
		c.mu.Unlock()
		for i, ready := range batch {
			batch[i] = nil
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
	ended := c.done
	if ended != nil {
		c.wake.Signal()
	}
	c.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

package poll

import "sync"

// A Caller is one goroutine that runs ready callbacks for events that epoll does not report: bytes
// are in a buffer already, or a Conn failed. The zero Caller is ready for use; its goroutine starts
// with the first callback.
//
//	done   stopping  state
//	nil    no        no goroutine yet
//	open   no        the goroutine runs callbacks, or waits for wake
//	any    yes       it runs what is queued, then ends and closes done
type Caller struct {
	mu        sync.Mutex // guards the fields below
	wake      sync.Cond
	callbacks []func()
	done      chan struct{}
	stopping  bool
}

// Call queues the callback ready for the goroutine. After Stop it runs the callback on a new
// goroutine, because a wake-up must never be lost.
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

// run calls the queued callbacks until Stop has been called and the queue is empty.
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

// Stop returns when all queued callbacks have run. A ready callback must not call Stop.
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

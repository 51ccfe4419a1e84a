package memory

import "time"

// Park sleeps in place until Progress could move something, Wake is called, or
// d has passed. One goroutine at a time may park.
func (c *conn) Park(d time.Duration) bool {
	if c.awake(d > 0) {
		return true
	}
	if d <= 0 {
		return false
	}
	if c.timer == nil {
		c.timer = time.NewTimer(d)
	} else {
		c.timer.Reset(d)
	}
	rung := false
	select {
	case <-c.bell:
		rung = true
	case <-c.timer.C:
	}
	c.timer.Stop()
	return c.awake(false) || rung
}

// awake reports whether there is a reason not to sleep, and uses up a Wake. If
// there is none it notes whether the caller is going to park.
func (c *conn) awake(parking bool) bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	awake := c.woken || c.waiting.Load() > 0
	c.woken = false
	c.parked = parking && !awake
	if !c.parked {
		select { // a bell rung for the Park that is over
		case <-c.bell:
		default:
		}
	}
	return awake
}

// Wake ends the Park that is under way, or the next one.
func (c *conn) Wake() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.woken = true
	if c.parked {
		c.ring()
	}
}

// ring ends a Park; the link is locked.
func (c *conn) ring() {
	select {
	case c.bell <- struct{}{}:
	default: // rung already
	}
}

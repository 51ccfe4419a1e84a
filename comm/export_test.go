package comm

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// WithWrap puts something between the job and its wire on each rank.
func WithWrap(wrap func(rank int, t transport.Transport) transport.Transport) Option {
	return func(o *options) { o.wrap = wrap }
}

// Verdict is the first verdict that this rank has heard; nil while there is none.
func (c *Comm) Verdict() *fault.Error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.down
}

// ForceHere forces algorithms on this rank alone, as no program can.
func (c *Comm) ForceHere(list string) error {
	t, err := c.table.Forcing(list)
	c.use(t)
	return err
}

package comm

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/topology"
	"github.com/tutti-go/tutti/transport"
)

// WithWrap puts something between the job and its wire on each rank.
func WithWrap(wrap func(rank int, t transport.Transport) transport.Transport) Option {
	return func(o *options) { o.wrap = wrap }
}

// WithFlagHook has hook set each flag in memory that all ranks share.
func WithFlagHook(hook func(rank int, set func())) Option {
	return func(o *options) { o.flagHook = hook }
}

// Verdict is the first verdict that this rank has heard; nil while there is none.
func (c *Comm) Verdict() *fault.Error {
	c.rt.mu.Lock()
	defer c.rt.mu.Unlock()
	return c.rt.verdict
}

// ForceHere forces algorithms on this rank alone, as no program can.
func (c *Comm) ForceHere(list string) error {
	t, err := c.table.WithForced(list)
	c.setTable(t)
	return err
}

// WithPlaces has ranks say that they run elsewhere: on hosts and in racks of the
// test's making. What is said to be on several hosts shares no memory.
func WithPlaces(at func(rank int) (host, rack string)) Option {
	return func(o *options) {
		o.testPlaces = func(rank int) topology.Place {
			host, rack := at(rank)
			return topology.Place{Host: host, Rack: rack}
		}
	}
}

// HostShares reports whether this rank shares memory with the others on its host.
func (c *Comm) HostShares() bool { return c.group.HasHostShared() }

// callInProgress reports whether a call is inside.
func (c *Comm) callInProgress() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.admitted != c.exited.Load()
}

package comm

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/topology"
	"github.com/tutti-go/tutti/transport"
)

// WithWrap wraps the transport of each rank, for example in a fault injector.
func WithWrap(wrap func(rank int, t transport.Transport) transport.Transport) Option {
	return func(o *options) { o.wrap = wrap }
}

// WithFlagHook makes each rank set its flags in shared memory by calling hook.
func WithFlagHook(hook func(rank int, set func())) Option {
	return func(o *options) { o.flagHook = hook }
}

// Verdict returns the first failure that the mesh reported to this rank, or nil if there is none.
func (c *Comm) Verdict() *fault.Error {
	c.rt.mu.Lock()
	defer c.rt.mu.Unlock()
	return c.rt.verdict
}

// ForceHere forces algorithms on this rank only. The public API cannot do so.
func (c *Comm) ForceHere(list string) error {
	t, err := c.table.WithForced(list)
	c.setTable(t)
	return err
}

// WithPlaces makes ranks report hosts and racks that the test chooses. Ranks that report different
// hosts do not share memory.
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

// callInProgress reports whether a blocking collective of the communicator is under way on this
// rank.
func (c *Comm) callInProgress() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.admitted != c.exited.Load()
}

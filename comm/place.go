package comm

import (
	"context"
	"fmt"
	"os"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/topology"
)

// Order is the ranks of the communicator in the order in which rings and trees visit
// them: host by host and rack by rack, whatever the ranks' numbers. It is the same
// on all ranks, and part of what the order of a reduction's folds depends on.
func (c *Comm) Order() []int { return c.g.Layout().Order() }

// Topology is the same for people: the hosts in order with their ranks, and with
// their racks where they have names: "n0[0 2] n1[1 3]", or "a/n0[0 2] b/n1[1 3]".
func (c *Comm) Topology() string { return c.g.Layout().String() }

// Hosts is on how many hosts the communicator's ranks are.
func (c *Comm) Hosts() int { return c.g.Layout().Hosts() }

// settle says where the communicator's ranks are, once that is known.
func (c *Comm) settle() {
	if c.w.places == nil {
		return
	}
	places := make([]topology.Place, c.Size())
	for rank := range places {
		places[rank] = c.w.places[c.g.World(rank)]
	}
	c.g.SetLayout(topology.New(places))
}

// agreeOnPlaces has every rank tell rank 0 its host and rack, and rank 0 tell all
// ranks everybody's, with the racks of its topology file where there is one.
func (w *world) agreeOnPlaces(ctx context.Context, c *Comm) ([]topology.Place, error) {
	place := topology.Place{Host: w.mesh.Host(w.rank), Rack: w.opt.rack}
	if w.opt.placed != nil {
		place = w.opt.placed(w.rank)
	}
	own := topology.AppendRecord(nil, place)
	var told []byte
	if w.rank == 0 {
		told = make([]byte, w.size*topology.RecordSize)
	}
	err := Gather(ctx, c, told, own, 0)
	if err == nil && w.rank == 0 {
		told, err = w.decideOnPlaces(told)
	}
	if err != nil {
		return nil, err
	}
	if told, err = tell(ctx, c, told, w.size*topology.RecordSize); err != nil {
		return nil, err
	}
	places, err := topology.ParseRecords(told)
	if err != nil || len(places) != w.size {
		return nil, fault.New(fault.Mismatch, "init", w.rank, "rank 0 told %d bytes about the places of %d ranks (%v): do all ranks run the same program?", len(told), w.size, err)
	}
	return places, nil
}

// decideOnPlaces is what rank 0 makes of all ranks' records.
func (w *world) decideOnPlaces(records []byte) ([]byte, error) {
	places, err := topology.ParseRecords(records)
	if err != nil {
		return nil, fault.New(fault.Mismatch, "init", w.rank, "the ranks' places: %w", err)
	}
	if w.opt.topology != "" {
		racks, err := topology.ReadFile(w.opt.topology)
		if err != nil {
			return nil, err
		}
		if err := racks.Apply(places); err != nil {
			return nil, err
		}
	}
	if err := topology.Check(places); err != nil {
		return nil, err
	}
	records = records[:0]
	for _, p := range places {
		records = topology.AppendRecord(records, p)
	}
	return records, nil
}

// reportOrder logs, on rank 0, in which order ranks are visited, and prints it where
// the choice of transports is printed.
func (w *world) reportOrder(c *Comm) {
	if w.rank != 0 {
		return
	}
	l := c.g.Layout()
	w.log.Info("tutti: rings and trees visit the ranks host by host", "order", l.String(), "hosts", l.Hosts(), "racks", l.Racks())
	if w.opt.report {
		fmt.Fprintf(os.Stderr, "tutti: rings and trees visit the ranks in the order %v\n", l)
	}
}

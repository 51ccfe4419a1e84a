package comm

import (
	"context"
	"fmt"
	"os"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/topology"
)

// Layout says where the ranks of the communicator run. Its Order is the order in which rings and
// trees visit the ranks: host by host and rack by rack, whatever the ranks' numbers. The Order is
// the same on all ranks, and the order of a reduction's steps depends on it. Its String is meant
// for people. It lists the hosts in order with their ranks, and with their racks if those have
// names: "n0[0 2] n1[1 3]", or "a/n0[0 2] b/n1[1 3]".
func (c *Comm) Layout() *topology.Layout { return c.group.Layout() }

// setLayout gives the group the places of the communicator's ranks, if they are known. The places
// are exchanged over the job's communicator, which assumes one host until they arrive.
func (c *Comm) setLayout() {
	if c.rt.places == nil {
		return
	}
	places := make([]topology.Place, c.Size())
	for rank := range places {
		places[rank] = c.rt.places[c.group.WorldRank(rank)]
	}
	c.group.SetLayout(topology.New(places))
}

// exchangePlacement gathers every rank's host and rack on rank 0. Rank 0 adds the racks of its
// topology file, if it has one, and broadcasts the result. All ranks then have the same layout,
// which is needed by algorithms that span several hosts.
func (rt *rankRuntime) exchangePlacement(ctx context.Context, c *Comm) ([]topology.Place, error) {
	own := topology.Place{Host: rt.mesh.Host(rt.rank), Rack: rt.opt.params.Rack}
	if rt.opt.testPlaces != nil {
		own = rt.opt.testPlaces(rt.rank)
	}
	// All records have one size, so Gather needs no counts.
	record := topology.AppendRecord(nil, own)
	var records []byte
	if rt.rank == 0 {
		records = make([]byte, rt.size*topology.RecordSize)
	}
	err := Gather(ctx, c, records, 0, From(record))
	if err == nil && rt.rank == 0 {
		records, err = rt.resolvePlacement(records)
	}
	if err != nil {
		return nil, err
	}
	if records, err = broadcastBytes(ctx, c, "places", records, rt.size*topology.RecordSize); err != nil {
		return nil, err
	}
	places, err := topology.ParseRecords(records)
	switch {
	case err != nil:
		return nil, fault.New(fault.Mismatch, "init", rt.rank, "places from rank 0: %w; run the same program on all ranks", err)
	case len(places) != rt.size:
		return nil, fault.New(fault.Mismatch, "init", rt.rank, "places from rank 0: got %d, want %d, one for each rank; run the same program on all ranks", len(places), rt.size)
	}
	return places, nil
}

// resolvePlacement runs on rank 0. It applies the topology file to the records of all ranks and
// checks the result. A host that the file does not list, or that is in two racks, causes an error
// that ends Init on all ranks.
func (rt *rankRuntime) resolvePlacement(records []byte) ([]byte, error) {
	places, err := topology.ParseRecords(records)
	if err != nil {
		return nil, fault.New(fault.Mismatch, "init", rt.rank, "places of the ranks: %w; run the same program on all ranks", err)
	}
	if rt.opt.params.Topology != "" {
		racks, err := topology.ReadFile(rt.opt.params.Topology)
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

// reportOrder logs, on rank 0, the order in which rings and trees visit the ranks. If the user
// asked for a report of the transports, reportOrder also prints the order on standard error.
func (rt *rankRuntime) reportOrder(c *Comm) {
	if rt.rank != 0 {
		return
	}
	l := c.group.Layout()
	rt.log.Info("tutti: rings and trees visit the ranks host by host", "order", l.String(), "hosts", l.Hosts(), "racks", l.Racks())
	if rt.opt.report {
		fmt.Fprintf(os.Stderr, "tutti: rings and trees visit the ranks in the order %v\n", l)
	}
}

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

// LocalRank returns the number of this rank among the ranks of c on its host, from 0, in the order
// of their ranks in c (hvd.local_rank). The package comment says, under Hosts, what a host is.
func (c *Comm) LocalRank() int {
	l := c.Layout()
	first, _ := l.Host(c.HostRank())
	return l.Position(c.Rank()) - first
}

// LocalSize returns the number of ranks of c on this rank's host, including this rank
// (hvd.local_size).
func (c *Comm) LocalSize() int {
	first, end := c.Layout().Host(c.HostRank())
	return end - first
}

// Host returns the name of this rank's host. All ranks of a host get the same name, and ranks of
// other hosts get other names. The name is the result of os.Hostname, truncated to 64 bytes, with
// "?" in place of every blank and every character that is not printable ASCII. It need not resolve
// to an address.
func (c *Comm) Host() string { return c.rt.places[c.rt.rank].Host }

// HostRank returns the number of this rank's host among the hosts of c, from 0, in the order of the
// Layout: rack by rack, and in each rack by the lowest rank of c on a host. Layout().Hosts() is the
// number of hosts, and Layout().HostOf returns the number of another rank's host.
//
// If all hosts have the same number of ranks, HostRank is Horovod's cross_rank. Otherwise the
// numbers can differ, because Horovod counts only hosts that have a rank with the same LocalRank.
// Split(ctx, c.LocalRank(), c.HostRank()) makes a communicator of these ranks, in which Rank and
// Size are cross_rank and cross_size.
func (c *Comm) HostRank() int { return c.Layout().HostOf(c.Rank()) }

// SplitByHost makes one communicator for each host, of the ranks of c on that host in the order of
// their ranks in c (MPI_Comm_split_type with MPI_COMM_TYPE_SHARED). All ranks of c must call it. It
// is Split(ctx, c.HostRank(), 0). On the new communicator Rank equals LocalRank of c, and Size
// equals LocalSize of c.
//
// MPI groups ranks that can share memory, and SplitByHost groups ranks whose hosts have the same
// name. If these ranks can share memory, the new communicator uses it. Otherwise its collectives
// use messages.
func (c *Comm) SplitByHost(ctx context.Context) (*Comm, error) {
	return c.Split(ctx, c.HostRank(), 0)
}

// Role returns the role of this process in its job:
//
//   - the name that --role gives to a program of tuttirun, or the name of the program's file if
//     tuttirun runs several programs, with ':' between them;
//   - the type of the task in TF_CONFIG, which is "chief", "master", "worker" or "ps". A task of type
//     "evaluator" is outside the cluster, so it is a job of one rank;
//   - DMLC_ROLE, which is "worker" or "server", if something else gives the process its rank.
//
// All of them are ordinary ranks here. For other jobs, and for Local, Role returns "". The role is
// the same on all communicators of the process. A rank does not know the roles of other ranks.
func (c *Comm) Role() string { return c.rt.opt.role }

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

package coordinator

import (
	"hash/fnv"
	"slices"

	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
)

// A TensorGroup collects submissions that are submitted as one: none of them runs
// before all of them are ready on all ranks, and a mismatch in one fails all. It
// is used by one goroutine.
type TensorGroup struct {
	co       *Coordinator
	requests []negotiate.TensorRequest
	handles  []*Handle
}

// Group begins an empty group. Handles of what is submitted to it are not done
// before Submit.
func (co *Coordinator) Group() *TensorGroup { return &TensorGroup{co: co} }

func (g *TensorGroup) coordinator() *Coordinator { return g.co }

func (g *TensorGroup) submit(q *negotiate.TensorRequest, h *Handle) {
	g.requests = append(g.requests, *q)
	g.handles = append(g.handles, h)
}

// Submit submits what was collected, and empties the group. All of it must be of
// one process set.
func (g *TensorGroup) Submit() {
	rs, hs := g.requests, g.handles
	g.requests, g.handles = nil, nil
	if len(rs) == 0 {
		return
	}
	names := make([]string, len(rs))
	for i := range rs {
		names[i] = rs[i].Name
	}
	slices.Sort(names)
	id := fnv.New64a()
	for _, n := range names {
		id.Write([]byte(n))
		id.Write([]byte{0})
	}
	for i := range rs {
		if rs[i].Set != rs[0].Set {
			g.co.mu.Lock()
			defer g.co.mu.Unlock()
			for _, h := range hs {
				h.complete(fault.New(fault.Misuse, "group", g.co.worldRank(g.co.rank), "tensors %q and %q are of different process sets", rs[0].Name, rs[i].Name))
			}
			return
		}
		rs[i].Group, rs[i].GroupSize = id.Sum64()|1, len(rs)
	}
	g.co.submitAll(rs, hs)
}

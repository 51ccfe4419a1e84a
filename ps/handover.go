package ps

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/assign"
	"github.com/tutti-go/tutti/ps/internal/message"
)

// An outcome is what the ranks of a new epoch have agreed on.
type outcome struct {
	servers map[partKey][]int // the servers of each part that is not lost; the first one is the primary
	closed  map[int]bool      // the clients that have closed
}

// A report is what a rank tells all others in a hand-over, as JSON.
type report struct {
	Registry []byte   // of a server: a message.Registry
	Ranks    []int    // that have declared the tensors of the Registry
	Tensors  uint32   // of a server: the highest number of a tensor that it knows
	Copies   []copyOf // of a server
	Closed   []int    // of a server: the clients that have closed
	Declared []uint32 // of a client: the tensors that it uses
}

// A copyOf is a copy of a part.
type copyOf struct {
	Tensor, Part uint32
	Index        uint64
	Primary      bool
}

// handOverLimit bounds each step of a hand-over. It is long, because the communicator reports ranks
// that are lost or silent, and a transfer may be large.
const handOverLimit = time.Hour

// watch carries out hand-overs until the node ends.
func (n *node) watch() {
	for {
		select {
		case <-n.ctx.Done():
			return
		case why := <-n.present().broken:
			if err := n.handOver(why); err != nil {
				if n.ctx.Err() == nil {
					n.fail(err)
				}
				return
			}
		}
	}
}

// handOver ends the epoch, and begins the next one with the ranks that are left. If ranks are lost
// meanwhile, it starts again with the others.
func (n *node) handOver(why error) error {
	first := n.present()
	n.pause(first, why)
	if !isLoss(why) {
		return why
	}
	ctx, cancel := context.WithTimeout(n.ctx, handOverLimit)
	defer cancel()
	for e := first; ; {
		c, err := n.shrink(e)
		if err != nil {
			return err
		}
		next := n.newEpoch(c, e)
		n.mu.Lock()
		n.epoch = next
		n.mu.Unlock()
		if e.c != n.c {
			e.c.Close(ctx)
		}
		o, err := n.agree(ctx, next)
		if err == nil {
			n.resume(first, next, o, why)
			return nil
		}
		if !isLoss(err) {
			return err
		}
		c.Revoke()
		next.cancel()
		e = next
	}
}

// endLimit is how long a node that ends takes part in a Shrink that it has begun.
const endLimit = 10 * time.Second

// shrink returns a communicator of the ranks that are left. A node that ends meanwhile takes part to the
// end of the call: if it left before, others might have counted it as a member already, and would wait for
// it. A member that leaves afterwards is noticed.
func (n *node) shrink(e *epoch) (*comm.Comm, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.ctx), handOverLimit)
	defer cancel()
	stop := context.AfterFunc(n.ctx, func() {
		select {
		case <-time.After(endLimit):
			cancel()
		case <-ctx.Done():
		}
	})
	defer stop()
	return e.c.Shrink(ctx)
}

// pause ends all messages of an epoch, seals all parts, and keeps the calls of the client.
func (n *node) pause(e *epoch, why error) {
	e.c.Revoke()
	if n.client != nil {
		n.client.pause(why)
	}
	if n.server != nil {
		n.server.disconnect(why)
	}
	e.cancel()
	e.tasks.Wait()
	if n.server != nil {
		n.server.onShards((*shard).seal)
		n.server.archive.interrupt()
	}
}

// disconnect ends the messages to all other ranks.
func (s *Server) disconnect(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		x.out.fail(why)
	}
	for _, x := range s.peers {
		x.out.fail(why)
	}
}

// agree exchanges the reports of all ranks, and transfers the copies that are missing.
func (n *node) agree(ctx context.Context, e *epoch) (*outcome, error) {
	reports, err := exchange[report](ctx, e.c, n.report())
	if err != nil {
		return nil, err
	}
	registry, err := mergeRegistries(reports, n.c.Size())
	if err != nil {
		return nil, n.errorf(fault.Mismatch, "ps", "%w", err)
	}
	o := &outcome{servers: make(map[partKey][]int), closed: make(map[int]bool)}
	var tensors uint32
	for _, r := range reports {
		tensors = max(tensors, r.Tensors)
		for _, c := range r.Closed {
			o.closed[c] = true
		}
	}
	plan := assign.NewPlan(n.assignable(), n.opts.replicas, e.parts(reports, registry))
	failed, err := n.transferAll(ctx, e, plan.Transfers, registry)
	if err != nil {
		return nil, err
	}
	for _, p := range plan.Parts {
		servers := []int{p.Primary}
		for _, r := range p.Replicas {
			if !slices.Contains(failed[e.ranks[r]], p.ID) {
				servers = append(servers, r)
			}
		}
		o.servers[keyOf(p.ID)] = servers
	}
	if n.server != nil {
		n.server.adopt(registry, tensors, o)
	}
	return o, nil
}

// idOf and keyOf convert between names of parts.
func idOf(k partKey) uint64 { return uint64(k.tensor)<<32 | uint64(k.part) }

func keyOf(id uint64) partKey { return partKey{uint32(id >> 32), uint32(id)} }

// report returns what this rank knows.
func (n *node) report() report {
	var r report
	if s := n.server; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		g := s.sortedRegistry()
		for i := range g {
			r.Ranks = append(r.Ranks, s.registry[g[i].Spec.Name].rank)
		}
		r.Registry, r.Tensors = g.Append(nil), s.tensors
		for key, p := range s.parts {
			r.Copies = append(r.Copies, copyOf{key.tensor, key.part, p.machine.Index(), p.servers[0] == n.c.Rank()})
		}
		for rank, c := range s.clients {
			if c.gone && c.lost == nil {
				r.Closed = append(r.Closed, rank)
			}
		}
	}
	if cl := n.client; cl != nil {
		cl.mu.Lock()
		defer cl.mu.Unlock()
		for _, d := range cl.tensors {
			r.Declared = append(r.Declared, d.id)
		}
	}
	return r
}

// sortedRegistry returns the registry in the order of the declarations. s.mu is held.
func (s *Server) sortedRegistry() message.Registry {
	g := make(message.Registry, 0, len(s.registry))
	for _, r := range s.registry {
		g = append(g, message.Registered{Spec: r.spec, Parts: r.placement})
	}
	slices.SortFunc(g, func(x, y message.Registered) int { return int(x.Parts.Tensor) - int(y.Parts.Tensor) })
	return g
}

// exchange returns the values that all ranks of c pass, in the order of the ranks.
func exchange[T any](ctx context.Context, c *comm.Comm, mine T) ([]T, error) {
	b, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	sizes := make([]int64, c.Size())
	if err := comm.AllGather(ctx, c, sizes, comm.From([]int64{int64(len(b))})); err != nil {
		return nil, err
	}
	counts, total := make([]int, c.Size()), 0
	for i, size := range sizes {
		counts[i] = int(size)
		total += int(size)
	}
	all := make([]byte, total)
	if err := comm.AllGather(ctx, c, all, comm.From(b), comm.Counts(counts)); err != nil {
		return nil, err
	}
	values := make([]T, c.Size())
	for i, count := range counts {
		if err := json.Unmarshal(all[:count], &values[i]); err != nil {
			return nil, err
		}
		all = all[count:]
	}
	return values, nil
}

// mergeRegistries returns the tensors that some server knows and that exist, by their numbers. A
// tensor does not exist if its creation was cut off: a part has no copy, nobody has pushed, and no
// client uses it. The next declaration creates it again.
func mergeRegistries(reports []report, ranks int) (map[uint32]*registered, error) {
	all := make(map[uint32]*registered)
	for _, r := range reports {
		if len(r.Registry) == 0 {
			continue
		}
		g, ok := message.ParseRegistry(r.Registry, ranks)
		if !ok || len(g) != len(r.Ranks) {
			return nil, errors.New("list of tensors: got one that cannot be read; run the same version of the program on all ranks")
		}
		for i := range g {
			if all[g[i].Parts.Tensor] == nil {
				all[g[i].Parts.Tensor] = &registered{spec: g[i].Spec, rank: r.Ranks[i], placement: g[i].Parts}
			}
		}
	}
	copies := make(map[partKey]bool)
	used := make(map[uint32]bool)
	for _, r := range reports {
		for _, c := range r.Copies {
			copies[partKey{c.Tensor, c.Part}] = true
			used[c.Tensor] = used[c.Tensor] || c.Index > 0
		}
		for _, id := range r.Declared {
			used[id] = true
		}
	}
	maps.DeleteFunc(all, func(id uint32, r *registered) bool {
		return !used[id] && !complete(id, r, copies)
	})
	return all, nil
}

// complete reports whether all parts of a tensor have a copy.
func complete(id uint32, r *registered, copies map[partKey]bool) bool {
	for i := range r.placement.Parts {
		if !copies[partKey{id, uint32(i)}] {
			return false
		}
	}
	return true
}

// parts returns all parts, with the copies that the ranks have reported.
func (e *epoch) parts(reports []report, registry map[uint32]*registered) []assign.Part {
	copies := make(map[partKey][]assign.Copy)
	for rank, own := range e.ranks {
		if own < 0 {
			continue
		}
		for _, c := range reports[own].Copies {
			key := partKey{c.Tensor, c.Part}
			copies[key] = append(copies[key], assign.Copy{Rank: rank, Index: c.Index, Primary: c.Primary})
		}
	}
	var parts []assign.Part
	for id, r := range registry {
		for i := range r.placement.Parts {
			key := partKey{id, uint32(i)}
			parts = append(parts, assign.Part{ID: idOf(key), Bytes: weigh(&r.spec, &r.placement, i), Copies: copies[key]})
		}
	}
	slices.SortFunc(parts, func(a, b assign.Part) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return parts
}

// adopt takes over what the ranks have agreed on. A part that is lost keeps its former servers in the
// registry.
func (s *Server) adopt(registry map[uint32]*registered, tensors uint32, o *outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.registry
	s.registry = make(map[string]*registered)
	s.tensors, s.balance = tensors, nil
	for id, r := range registry {
		if k := known[r.spec.Name]; k != nil {
			r.at = k.at
		}
		r.placement.Parts = slices.Clone(r.placement.Parts)
		for i := range r.placement.Parts {
			if servers := o.servers[partKey{id, uint32(i)}]; len(servers) > 0 {
				r.placement.Parts[i].Servers = servers
			}
		}
		s.registry[r.spec.Name] = r
	}
	for key, p := range s.parts {
		if p.servers = o.servers[key]; !slices.Contains(p.servers, s.n.c.Rank()) {
			delete(s.parts, key)
			p.free()
		}
	}
}

// resume begins an epoch.
func (n *node) resume(before, e *epoch, o *outcome, why error) {
	var lost []int
	for r := range e.ranks {
		if before.has(r) && !e.has(r) && (n.members[r].serves || !o.closed[r]) {
			lost = append(lost, r)
		}
	}
	err := n.lossOf(lost, why)
	n.opts.log.Warn("ps: goes on without lost ranks", "rank", n.worldRank(n.c.Rank()), "left", e.c.Size(), "err", err)
	if s := n.server; s != nil {
		s.lose(e, o, err)
		s.connect(e)
		s.onShards(func(p *shard) {
			p.newborn = false
			p.begin(s.beginMembers())
		})
		s.startLinks(e)
		s.mu.Lock()
		s.checkIdle()
		s.mu.Unlock()
	}
	if n.client != nil {
		n.client.resume(e, o, err)
	}
}

// lose notes which clients have closed or are lost.
func (s *Server) lose(e *epoch, o *outcome, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, c := range s.clients {
		if c.gone || e.has(r) && !o.closed[r] {
			continue
		}
		c.gone = true
		s.archive.detach(r)
		if o.closed[r] {
			continue
		}
		c.lost = err
		if s.n.opts.lost == Fail && s.lost == nil {
			s.lost = err
		}
	}
}

// fail ends the node: it is not part of the next epoch, or there is none. It closes the communicator, so
// that other ranks do not wait for this one.
func (n *node) fail(err error) {
	e := n.present()
	e.c.Revoke()
	e.c.Close(n.ctx)
	if s := n.server; s != nil {
		s.mu.Lock()
		s.fatal = err
		for _, c := range s.clients {
			if !c.gone {
				c.gone, c.lost = true, err
			}
		}
		s.checkIdle()
		s.mu.Unlock()
	}
	if n.client != nil {
		n.client.fail(err)
	}
}

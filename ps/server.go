package ps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/assign"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/ps/internal/storage"
)

// A Server holds parts of tensors. Its methods may be called by any goroutine.
//
// Each remote client has a session, whose goroutines receive its requests and send the replies. A
// request about a part becomes a job of the engine that owns the part.
type Server struct {
	n       *node
	engines []*engine
	budget  *storage.Budget
	archive *archive
	sending sync.WaitGroup // of the outlets to clients and to other servers

	mu       sync.Mutex             // guards the fields below
	served   chan struct{}          // closed when Serve has ended; nil before Serve
	serveErr error                  // valid when served is closed
	registry map[string]*registered // of all tensors; without replicas only the lead has it
	tensors  uint32                 // the highest number of a tensor
	balance  *assign.Balance        // nil until the lead places its first tensor in an epoch
	parts    map[partKey]*shard     // that this server holds
	clients  map[int]*presence      // by rank
	lost     error                  // the first loss of a worker, under Fail
	fatal    error                  // why this rank cannot go on
	idle     chan struct{}          // closed when no client is left, and no other server has one
	ended    bool
	// The fields below are of the present epoch.
	sessions map[int]*session // by rank, of the remote clients
	peers    map[int]*peer    // by rank, of the other servers; nil without replicas
	members  part.Members     // Workers and Lost at its beginning; with replicas only
	closing  bool             // this server has told the others that it has no client

	received, sent atomic.Uint64
	reported       chan struct{} // closed when no table is written any more; nil without a report
}

// A registered is a declaration that the lead knows.
type registered struct {
	spec      message.Spec
	rank      int
	at        string
	placement message.PartList
}

// A partKey names a part.
type partKey struct{ tensor, part uint32 }

// A presence is a client as the server sees it.
type presence struct {
	id   uint64
	gone bool  // it has closed, or is lost
	lost error // how it was lost
}

// A session is the server's side of the connection to one remote client.
type session struct {
	s     *Server
	rank  int
	epoch uint64
	out   *outlet
}

func newServer(n *node) *Server {
	s := &Server{n: n, registry: make(map[string]*registered), parts: make(map[partKey]*shard),
		clients: make(map[int]*presence), idle: make(chan struct{})}
	if n.opts.memory > 0 {
		s.budget = storage.NewBudget(n.opts.memory)
	}
	s.archive = newArchive(s)
	for range n.opts.engines {
		s.engines = append(s.engines, newEngine())
	}
	for r, m := range n.members {
		if !m.works {
			continue
		}
		s.clients[r] = &presence{id: m.id}
	}
	s.connect(n.epoch)
	return s
}

// connect makes the sessions and the links to other servers of an epoch.
func (s *Server) connect(e *epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions, s.peers, s.closing = make(map[int]*session), nil, false
	if s.n.replicated() {
		s.peers = make(map[int]*peer)
		s.members.Workers, s.members.Lost, _ = s.presentLocked()
	}
	for r, m := range s.n.members {
		if r == s.n.c.Rank() || !e.has(r) {
			continue
		}
		if m.works {
			s.sessions[r] = &session{s: s, rank: r, epoch: e.number, out: e.outlet(r, tagReply, tagReplyBody, -1)}
		}
		if m.serves && s.n.replicated() {
			s.peers[r] = &peer{s: s, rank: r, epoch: e.number, out: e.outlet(r, tagPeer, tagPeerBody, -1)}
		}
	}
}

func (s *Server) start() {
	for _, e := range s.engines {
		s.n.tasks.Go(func() { s.runEngine(e) })
	}
	s.n.tasks.Go(s.archive.run)
	if every := s.n.opts.report; every > 0 {
		s.reported = make(chan struct{})
		go func() {
			defer close(s.reported)
			s.report(s.n.opts.reportTo, every)
		}()
	}
	s.startLinks(s.n.epoch)
}

// startLinks starts the goroutines of the sessions, and of the links to other servers.
func (s *Server) startLinks(e *epoch) {
	for _, x := range s.sessions {
		s.sending.Add(1)
		e.send(x.out, func(err error) {
			s.sending.Done()
			if err != nil {
				x.lost(e, err)
			}
		})
		e.tasks.Go(func() { x.receive(e) })
	}
	for _, x := range s.peers {
		x.start(e)
	}
}

// lost handles the loss of the client.
func (x *session) lost(e *epoch, err error) {
	if x.s.n.replicated() {
		x.s.breaks(e, x.rank, err)
		return
	}
	x.s.detach(x.rank, err)
}

// breaks ends an epoch because of the loss of a rank, unless nothing is left to do for it: it is a client
// that has closed, or a server that has no client.
func (s *Server) breaks(e *epoch, rank int, err error) {
	s.mu.Lock()
	c, x := s.clients[rank], s.peers[rank]
	over := s.ended || x != nil && x.closed || x == nil && c != nil && c.gone
	s.mu.Unlock()
	if !over {
		e.end(err)
	}
}

// runEngine runs an engine until the server ends, and then ends the calls that wait in its parts.
func (s *Server) runEngine(e *engine) {
	e.run()
	var parts []*shard
	s.mu.Lock()
	for _, p := range s.parts {
		if p.engine == e {
			parts = append(parts, p)
		}
	}
	s.mu.Unlock()
	for _, p := range parts {
		p.carryOut(p.machine.Seal())
		p.refuseOwn(s.errEnded())
	}
}

// errEnded returns the error of a call after the end of this rank's server.
func (s *Server) errEnded() error { return s.errorf(fault.Closed, "the server has ended") }

// Serve serves until every client has closed or is lost. It returns the error of the first client
// that was lost, unless the option WithLostWorkers(Continue) is given. If ctx ends first, the server
// ends, and calls that need it fail on all clients. A second Serve waits for the first and returns the
// same, unless its own ctx ends first.
func (s *Server) Serve(ctx context.Context) error {
	const op = "ps serve"
	if s.n.client != nil {
		return fault.New(fault.Misuse, op, s.n.worldRank(s.n.c.Rank()), "server: got one of a rank that works, too, want one that only serves; Client.Close ends the other")
	}
	s.mu.Lock()
	second := s.served != nil
	if !second {
		s.served = make(chan struct{})
	}
	s.mu.Unlock()
	if second {
		return s.n.waitSame(ctx, op, s.served, &s.serveErr)
	}
	defer close(s.served)
	s.serveErr = s.wait(ctx, op)
	s.serveErr = cmp.Or(s.serveErr, s.end(ctx, op))
	s.serveErr = cmp.Or(s.serveErr, s.n.stop())
	return s.serveErr
}

// wait waits until every client has closed or is lost.
func (s *Server) wait(ctx context.Context, op string) error {
	select {
	case <-s.idle:
	case <-ctx.Done():
		return s.n.waitError(op, ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(s.fatal, s.lost); err != nil {
		return s.n.withOp(op, err)
	}
	return nil
}

// end ends the engines, and waits until the sessions have sent what is queued. If ctx ends first, or
// clients are left, it revokes the communicator, so that no client waits for this server.
func (s *Server) end(ctx context.Context, op string) error {
	s.mu.Lock()
	s.ended = true
	for _, x := range s.sessions {
		x.out.end()
	}
	for _, x := range s.peers {
		x.out.end()
	}
	s.mu.Unlock()
	for _, e := range s.engines {
		e.end()
	}
	drained := make(chan struct{})
	go func() {
		s.sending.Wait()
		close(drained)
	}()
	select {
	case <-s.idle:
	default:
		s.n.revoke()
	}
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		s.n.revoke()
		<-drained // the revoke ends the messages
		return s.n.waitError(op, ctx)
	}
}

// receive receives the requests of a client until it closes or is lost.
func (x *session) receive(e *epoch) {
	in := inlet[*job]{comm: e.wires, from: e.ranks[x.rank], headTag: tagRequest, bodyTag: tagRequestBody, head: x.requestHead, done: x.requestDone}
	if err := in.run(e.ctx); err != nil {
		x.lost(e, err)
		x.out.fail(err)
	}
}

// requestHead handles the head of a request.
func (x *session) requestHead(msg []byte) (*job, []byte, error) {
	q, inline, ok := message.ParseRequest(msg)
	if !ok {
		return nil, nil, x.s.protocolError(x.rank, errors.New("message: got a request that cannot be read; run the same version of the program on all ranks"))
	}
	if limit := x.s.bodyLimit(&q); q.Size > limit {
		return nil, nil, x.s.protocolError(x.rank, fmt.Errorf("message: got a request with %d bytes, want at most %d; run the same version of the program on all ranks", q.Size, limit))
	}
	j := &job{session: x, client: x.s.n.members[x.rank].id, rank: x.rank, epoch: x.epoch, q: q, times: x.s.n.serverTimes(&q, x.rank)}
	x.s.received.Add(uint64(q.Size))
	if q.Size > 0 {
		j.buffer = x.s.n.pool.get(q.Size)
		j.body = j.buffer.Bytes()
	}
	if q.Size > message.Inline {
		return j, j.body, nil
	}
	copy(j.body, inline)
	return j, nil, nil
}

// protocolError returns the error of a message that no client of this version sends.
func (s *Server) protocolError(rank int, err error) error {
	n := s.n
	return &fault.Error{Kind: fault.Mismatch, Op: "ps serve", Rank: n.worldRank(n.c.Rank()), Peers: []fault.Peer{{Rank: n.worldRank(rank)}}, Err: err}
}

// bodyLimit bounds the body of a request, before memory for it is taken. A request that a part does
// not accept may have a body as large as a part, so that the client gets a reply.
func (s *Server) bodyLimit(q *message.Request) int {
	switch q.Kind {
	case message.Declare, message.Create:
		return maxPlacement
	case message.Load:
		return maxPlacement + message.MaxDir // a registry, as the reply to an OpenSnapshot bounds it
	case message.OpenSnapshot:
		return message.MaxDir
	case message.Close, message.CloseSnapshot, message.Install, message.Drop, message.Save, message.Replicate, message.Replicated:
		return 0
	}
	s.mu.Lock()
	p := s.parts[partKey{q.Tensor, q.Part}]
	s.mu.Unlock()
	if p == nil || p.check(q, q.Size) != "" {
		return max(s.n.opts.part, message.Inline)
	}
	return q.Size
}

// requestDone hands a complete request on.
func (x *session) requestDone(j *job, err error) bool {
	if err != nil {
		j.release()
		return false
	}
	j.times.mark(received)
	x.s.submit(j)
	return j.q.Kind != message.Close
}

// submitLocal handles a request of this rank's own client.
func (s *Server) submitLocal(c *call) {
	r := s.n.c.Rank()
	c.q.Size = c.bodySize()
	j := &job{call: c, client: s.n.members[r].id, rank: r, epoch: s.n.present().number, q: c.q, body: c.body, times: s.n.serverTimes(&c.q, r)}
	j.times.mark(received)
	c.times.mark(clientStarted)
	c.times.mark(clientSent)
	s.submit(j)
}

// submit carries out a request, or hands it to the engine of its part.
func (s *Server) submit(j *job) {
	switch j.q.Kind {
	case message.Declare:
		placement, err := s.declare(j)
		j.finish(placement, err)
	case message.Create:
		j.finish(nil, s.create(j))
	case message.Close:
		j.finish(nil, nil)
		s.detach(j.rank, nil)
	case message.OpenSnapshot, message.CloseSnapshot, message.Load, message.Install, message.Drop:
		s.archive.submit(j)
	case message.Replicate, message.Replicated:
		j.finish(nil, s.errorf(fault.Mismatch, "message: got one for servers from a client"))
	default:
		s.mu.Lock()
		p := s.parts[partKey{j.q.Tensor, j.q.Part}]
		s.mu.Unlock()
		if p == nil {
			j.finish(nil, s.errorf(fault.Misuse, "part %d of tensor %d: this server has no such part", j.q.Part, j.q.Tensor))
			return
		}
		if err := p.check(&j.q, j.q.Size); err != "" {
			j.finish(nil, s.errorf(fault.Mismatch, "request for %s: %s", p.name(), err))
			return
		}
		j.part = p
		j.priority = p.priority
		p.engine.add(j)
	}
}

// errorf returns an error that this server has found.
func (s *Server) errorf(k fault.Kind, format string, args ...any) error {
	return fault.New(k, "ps", s.n.worldRank(s.n.c.Rank()), format, args...)
}

// declare compares a declaration with an earlier one, or places the tensor.
func (s *Server) declare(j *job) ([]byte, error) {
	d, ok := message.ParseDeclaration(j.body)
	if !ok {
		return nil, s.errorf(fault.Mismatch, "declaration: got one that cannot be read; run the same version of the program on all ranks")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.registry[d.Spec.Name]
	if known == nil {
		if err := s.checkSpec(&d.Spec); err != nil {
			return nil, err
		}
	}
	if known == nil && !validCut(&d.Spec, d.Cut) {
		return nil, s.errorf(fault.Mismatch, "parts of %s: got some that do not make up %s", d.Spec.Name, describe(&d.Spec))
	}
	if known == nil {
		known = &registered{spec: d.Spec, rank: j.rank, at: d.At, placement: s.assignParts(&d.Spec, d.Cut)}
		s.registry[d.Spec.Name] = known
	}
	if known.spec != d.Spec {
		rank := s.n.worldRank
		return nil, &fault.Error{Kind: fault.Mismatch, Op: "declare " + d.Spec.Name, Rank: rank(s.n.c.Rank()),
			Peers: []fault.Peer{{Rank: rank(known.rank), Call: "declare " + known.spec.Name, At: known.at}, {Rank: rank(j.rank), Call: "declare " + d.Spec.Name, At: d.At}},
			Err:   fmt.Errorf("declarations of %s: got %s on rank %d, want %s as on rank %d", d.Spec.Name, describe(&d.Spec), rank(j.rank), describe(&known.spec), rank(known.rank))}
	}
	return known.placement.Append(nil), nil
}

// tablePartsPerServer is how many parts a table has for each server, so that several engines work on
// it, and parts can move.
const tablePartsPerServer = 4

// maxParts bounds the parts of a tensor, so that the lead's answer about them is at most maxPlacement.
const maxParts = 1 << 20

// checkSpec returns an error unless the server can cut the tensor into parts.
func (s *Server) checkSpec(spec *message.Spec) error {
	if bad := sizeError(spec); bad != "" {
		return s.errorf(fault.Mismatch, "declaration of %s: %s; run the same version of the program on all ranks", spec.Name, bad)
	}
	if per := partElements(spec, s.n.opts.part); !spec.Table && (spec.Size-1)/per >= maxParts {
		return s.errorf(fault.Misuse, "parts of %s: got %d, want at most %d; make parts larger with the option WithPart", spec.Name, (spec.Size-1)/per+1, maxParts)
	}
	return nil
}

// partElements returns how many elements a part of the given size in bytes has.
func partElements(spec *message.Spec, bytes int) int { return max(1, bytes/spec.DType.Size()) }

// validCut reports whether these parts make up a tensor, or there are none.
func validCut(spec *message.Spec, cut []message.PartSpec) bool {
	if len(cut) > maxParts {
		return false
	}
	end := 0
	for _, p := range cut {
		if p.First != end || p.Count < 1 && !spec.Table || p.Count > message.MaxBody/spec.DType.Size() {
			return false
		}
		end += p.Count
	}
	return len(cut) == 0 || spec.Table && end == 0 || !spec.Table && end == spec.Size
}

// assignParts cuts a tensor into parts, unless the parts are given, and assigns them to servers. s.mu
// is held.
func (s *Server) assignParts(spec *message.Spec, cut []message.PartSpec) message.PartList {
	if s.balance == nil {
		s.balance = s.newBalance()
	}
	s.tensors++
	p := message.PartList{Tensor: s.tensors, Parts: slices.Clone(cut)}
	if len(cut) > 0 {
		// The parts are those of a snapshot.
	} else if spec.Table {
		p.Parts = make([]message.PartSpec, tablePartsPerServer*len(s.n.servers()))
	} else {
		per := partElements(spec, s.n.opts.part)
		for first := 0; first < spec.Size; first += per {
			p.Parts = append(p.Parts, message.PartSpec{First: first, Count: min(per, spec.Size-first)})
		}
	}
	sizes := make([]int64, len(p.Parts))
	for i := range sizes {
		sizes[i] = weigh(spec, &p, i)
	}
	balance := s.balance
	if spec.Table && spec.Rows == 0 {
		// Nobody knows how large the table will be, so the loads of the servers do not count.
		balance = assign.NewBalance(s.n.assignable(), s.n.opts.replicas)
	}
	for i, a := range balance.Assign(sizes) {
		p.Parts[i].Servers = append([]int{a.Primary}, a.Replicas...)
		if balance != s.balance {
			s.balance.Add(a, sizes[i])
		}
	}
	return p
}

// newBalance returns the assignment of the parts that have servers. s.mu is held.
func (s *Server) newBalance() *assign.Balance {
	b := assign.NewBalance(s.n.assignable(), s.n.opts.replicas)
	for _, r := range s.registry {
		for i := range r.placement.Parts {
			servers := r.placement.Parts[i].Servers
			b.Add(assign.Placement{Primary: servers[0], Replicas: servers[1:]}, weigh(&r.spec, &r.placement, i))
		}
	}
	return b
}

// weigh returns the bytes of a part's values for the choice of servers.
func weigh(spec *message.Spec, p *message.PartList, i int) int64 {
	if spec.Table {
		return max(1, tableWeight(spec)/int64(len(p.Parts)))
	}
	return max(1, int64(p.Parts[i].Count*spec.DType.Size()))
}

// tableWeight returns the bytes of a table's values for the choice of servers. The bound keeps the sums
// of many tables from an overflow.
func tableWeight(spec *message.Spec) int64 {
	width := int64(spec.Size * spec.DType.Size())
	return min(max(1, spec.Rows), maxWeight/width) * width
}

// maxWeight is more than the memory of any server.
const maxWeight = 1 << 50

// create makes the parts of a tensor that this server holds, unless another client has done so. If
// one part cannot be made, none is.
func (s *Server) create(j *job) error {
	spec, placement, ok := message.ParseCreate(j.body, s.n.c.Size())
	if !ok {
		return s.errorf(fault.Mismatch, "creation of a tensor: got a message that cannot be read; run the same version of the program on all ranks")
	}
	if sizeError(&spec) != "" || len(placement.Parts) == 0 || !validCut(&spec, placement.Parts) {
		return s.errorf(fault.Mismatch, "parts of %s: got some that do not make up %s", spec.Name, describe(&spec))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n.replicated() && s.registry[spec.Name] == nil {
		s.registry[spec.Name] = &registered{spec: spec, rank: j.rank, placement: placement}
		s.tensors = max(s.tensors, placement.Tensor)
	}
	var made []*shard
	for i, mp := range placement.Parts {
		key := partKey{placement.Tensor, uint32(i)}
		if !slices.Contains(mp.Servers, s.n.c.Rank()) || s.parts[key] != nil {
			continue
		}
		p, err := s.newShard(&spec, key, mp)
		if err != nil {
			for _, p := range made {
				delete(s.parts, p.key)
				p.free()
			}
			return err
		}
		s.parts[key] = p
		made = append(made, p)
	}
	return nil
}

// detach notes that a client sends nothing more: it has closed, or err says how it was lost.
func (s *Server) detach(rank int, err error) {
	s.archive.detach(rank)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[rank]
	if c.gone || s.ended {
		return
	}
	c.gone, c.lost = true, err
	if err != nil && s.n.opts.lost == Fail && s.lost == nil {
		s.lost = err
	}
	for _, p := range s.parts {
		p.engine.add(&job{part: p, priority: p.priority, members: true})
	}
	s.checkIdle()
}

// checkIdle closes idle when no client is left. With replicas, all servers must have no client, because
// until then a part needs all of its copies. s.mu is held.
func (s *Server) checkIdle() {
	if slices.ContainsFunc(s.n.clientRanks(), func(r int) bool { return !s.clients[r].gone }) {
		return
	}
	if s.peers != nil && !s.closing && s.fatal == nil {
		s.closing = true
		for _, x := range s.peers {
			x.send(&message.Request{Kind: message.Close}, nil, lowest, func(error) {})
			x.out.end()
		}
	}
	for _, x := range s.peers {
		if !x.closed && s.fatal == nil {
			return
		}
	}
	select {
	case <-s.idle:
	default:
		close(s.idle)
	}
}

// ownLoss returns how this rank's own client was lost, or nil.
func (s *Server) ownLoss() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[s.n.c.Rank()]; c != nil {
		return c.lost
	}
	return nil
}

// present returns the clients that are left and those that are lost, in the order of their ranks,
// and the error of the first loss.
func (s *Server) present() (workers, lost []uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.presentLocked()
}

func (s *Server) presentLocked() (workers, lost []uint64, err error) {
	for _, r := range s.n.clientRanks() {
		switch c := s.clients[r]; {
		case !c.gone:
			workers = append(workers, c.id)
		case c.lost != nil && s.n.opts.lost == Fail:
			lost = append(lost, c.id)
		}
	}
	return workers, lost, s.lost
}

// beginMembers returns the clients with which a part begins. With replicas these are the clients at the
// beginning of the epoch, so that all copies begin with the same ones. The log says who closes later.
func (s *Server) beginMembers() part.Members {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.membersLocked()
}

func (s *Server) membersLocked() part.Members {
	if s.n.replicated() {
		return s.members
	}
	workers, lost, _ := s.presentLocked()
	return part.Members{Workers: workers, Lost: lost}
}

// A Stats counts what a rank has done.
type Stats struct {
	Tensors, Parts int
	Bytes          int64  // of values and optimizer state on this server
	Pushes, Pulls  uint64 // requests: one for each part
	Received, Sent uint64 // bytes of bodies to and from other ranks
	Queued         int    // requests that wait for an engine, for credit or for the wire
	InFlight       int64  // bytes that this worker has sent and no server has acknowledged

	ByTensor []TensorStats // of a server, in the order of the names
}

// Stats returns the server's counts.
func (s *Server) Stats() Stats {
	st := Stats{Received: s.received.Load(), Sent: s.sent.Load()}
	tensors := make(map[uint32]*TensorStats)
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, p := range s.parts {
		if tensors[key.tensor] == nil {
			tensors[key.tensor] = new(TensorStats)
		}
		p.addStats(tensors[key.tensor])
	}
	st.Tensors, st.Parts, st.ByTensor = len(tensors), len(s.parts), sortedStats(tensors)
	for i := range st.ByTensor {
		t := &st.ByTensor[i]
		st.Bytes, st.Pushes, st.Pulls = st.Bytes+t.Bytes, st.Pushes+t.Pushes, st.Pulls+t.Pulls
	}
	for _, e := range s.engines {
		st.Queued += e.queued()
	}
	for _, x := range s.sessions {
		queued, _ := x.out.load()
		st.Queued += queued
	}
	return st
}

// Stats returns the client's counts.
func (cl *Client) Stats() Stats {
	st := Stats{Pushes: cl.pushes.Load(), Pulls: cl.pulls.Load(), Received: cl.received.Load(), Sent: cl.sent.Load()}
	for _, l := range cl.links {
		if l.out != nil {
			queued, inFlight := l.out.load()
			st.Queued += queued
			st.InFlight += inFlight
		}
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	st.Tensors = len(cl.tensors)
	for _, d := range cl.tensors {
		st.Parts += len(d.parts)
	}
	return st
}

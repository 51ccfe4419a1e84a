package part

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// A sim is one part on some servers with some clients, and a network that delivers the messages of
// each pair in order. It stands in for the executor: the values of a copy are the list of the
// rounds that made them.
type sim struct {
	cfg     Config
	copies  int
	rnd     *rand.Rand
	epoch   uint64
	servers []*server
	clients []*simClient
	network map[[2]int][]message // by sender and receiver: servers 0, 1, …; clients 100, 101, …
	next    uint64               // the next name of a request
	rounds  int
	lost    []uint64 // clients
	joined  map[uint64]bool
	trace   []string
}

// A contribution is one entry of a client; set marks new values.
type contribution struct {
	client, seq uint64
	set         bool
}

type values struct {
	rounds      [][]contribution
	accumulator []contribution
}

func (v values) clone() values {
	c := values{accumulator: slices.Clone(v.accumulator)}
	for _, r := range v.rounds {
		c.rounds = append(c.rounds, slices.Clone(r))
	}
	return c
}

type server struct {
	id       int
	m        *Machine
	killed   bool
	stopped  bool // by SIGSTOP: it is no member, and goes on later
	values   values
	buffers  map[uint64]contribution
	requests map[uint64]message // what to answer
	primary  int
}

type message struct {
	from  int
	epoch uint64
	in    Input
	out   Output
	data  contribution
	shown [][]contribution // of an Answer
	op    uint64           // the client's name of its request
}

// again is the name of a request that a client sends a second time, and whose answer it ignores.
const again = ^uint64(0)

type simClient struct {
	id         uint64 // 100 and up
	killed     bool
	script     []InputKind
	ops        []*op // begun and not ended, in order
	seq, begun uint64
	acked      []uint64 // Seqs of pushes and Sets
	failed     bool
	epoch      uint64
	pushes     uint64
	base       uint64 // pulls of a synchronous part show at least the version at which the client came
	primary    int
}

type op struct {
	kind   InputKind
	seq    uint64
	id     uint64
	pushes uint64 // of the client at that time
}

func newSim(seed uint64, cfg Config, servers, copies, clients, rounds int) *sim {
	s := &sim{cfg: cfg, copies: copies, rnd: rand.New(rand.NewPCG(seed, 1)), rounds: rounds,
		network: map[[2]int][]message{}, joined: map[uint64]bool{}}
	for i := range servers {
		s.servers = append(s.servers, &server{id: i})
	}
	for range clients {
		s.addClient()
	}
	return s
}

func (s *sim) addClient() {
	c := &simClient{id: uint64(100 + len(s.clients))}
	for range s.rounds {
		if s.rnd.IntN(8) == 0 {
			c.script = append(c.script, Set)
		}
		c.script = append(c.script, Push)
		for s.rnd.IntN(3) > 0 {
			c.script = append(c.script, Pull)
		}
	}
	c.script = append(c.script, Close)
	s.clients = append(s.clients, c)
}

func (s *sim) logf(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *sim) send(from, to int, m message) {
	m.from = from
	s.network[[2]int{from, to}] = append(s.network[[2]int{from, to}], m)
}

// begin seals the Machines of the live servers, hands the part over, begins the next epoch, and
// lets the clients send again. It returns false if no copy is left.
func (s *sim) begin() bool {
	var live, copies []*server
	for _, v := range s.servers {
		if v.killed || v.stopped {
			continue
		}
		live = append(live, v)
		if v.m != nil {
			s.execute(v, v.m.Seal())
			copies = append(copies, v)
		}
	}
	if s.epoch == 0 {
		live[0].m, live[0].buffers = New(s.cfg, State{}), map[uint64]contribution{}
		copies = live[:1]
	}
	s.epoch++
	if len(copies) == 0 {
		return false
	}
	source := slices.MaxFunc(copies, func(a, b *server) int { return int(a.m.Index()) - int(b.m.Index()) })
	holders := []*server{source}
	for _, v := range live {
		if v != source && len(holders) < s.copies {
			s.handOver(source, v)
			holders = append(holders, v)
		} else if v != source {
			v.m = nil
		}
	}
	s.rnd.Shuffle(len(holders), func(i, j int) { holders[i], holders[j] = holders[j], holders[i] })
	e := Members{Epoch: s.epoch, Lost: s.lost}
	for _, c := range s.clients {
		if !c.killed && (len(c.script) > 0 || len(c.ops) > 0) {
			e.Workers = append(e.Workers, c.id)
			if !s.joined[c.id] {
				c.base, s.joined[c.id] = source.m.Version(), true
			}
		}
	}
	for _, v := range holders[1:] {
		e.Replicas = append(e.Replicas, v.id)
	}
	s.logf("epoch %d: primary %d of %v, clients %v", s.epoch, holders[0].id, e.Replicas, e.Workers)
	for i, v := range holders {
		e.Primary = i == 0
		v.requests, v.primary = map[uint64]message{}, holders[0].id
		s.execute(v, v.m.Begin(e))
	}
	for _, c := range s.clients {
		c.epoch, c.primary = s.epoch, holders[0].id
		for _, o := range c.ops {
			s.submit(c, o)
		}
	}
	return true
}

// handOver sends all that a copy is, as bytes.
func (s *sim) handOver(from, to *server) {
	state, ok := ParseState(from.m.State().Append(nil))
	if !ok {
		panic("a State that cannot be parsed")
	}
	to.values, to.buffers = from.values.clone(), map[uint64]contribution{}
	for i := range state.Clients {
		if c := &state.Clients[i]; c.Share == Held {
			s.next++
			to.buffers[s.next] = from.buffers[c.Request]
			c.Request = s.next
		}
	}
	to.m = New(s.cfg, state)
}

func (s *sim) submit(c *simClient, o *op) {
	s.send(int(c.id), c.primary, message{epoch: c.epoch, op: o.id,
		in:   Input{Kind: o.kind, Client: c.id, Seq: o.seq},
		data: contribution{c.id, o.seq, o.kind == Set}})
}

// mustWait reports whether the client's next entry waits for the answers to its pulls.
func (s *sim) mustWait(c *simClient) bool {
	return s.cfg.Mode == Synchronous && c.script[0] != Pull &&
		slices.ContainsFunc(c.ops, func(o *op) bool { return o.kind == Pull })
}

// nextOp begins the next operation of a client's script.
func (s *sim) nextOp(c *simClient) {
	o := &op{kind: c.script[0], id: c.begun}
	c.script, c.begun = c.script[1:], c.begun+1
	if o.kind != Pull {
		c.seq++
	}
	if o.kind == Push {
		c.pushes++
	}
	o.seq, o.pushes = c.seq, c.pushes
	c.ops = append(c.ops, o)
	s.submit(c, o)
	if o.kind != Pull && s.rnd.IntN(10) == 0 {
		s.submit(c, &op{kind: o.kind, seq: o.seq, id: again})
	}
}

// execute carries out the outputs of a server's Machine.
func (s *sim) execute(v *server, outputs []Output) {
	for _, o := range slices.Clone(outputs) {
		switch o.Kind {
		case Forward:
			s.send(v.id, o.Server, message{epoch: v.m.epoch, data: v.buffer(o.Request, o.Entry),
				in: Input{Kind: Replicate, Entry: o.Entry, Index: o.Index, Client: o.Client, Seq: o.Seq}})
		case Fold:
			if o.First != (len(v.values.accumulator) == 0) {
				panic("First is wrong")
			}
			v.values.accumulator = append(v.values.accumulator, v.buffer(o.Request, Push))
			delete(v.buffers, o.Request)
		case Complete:
			if len(v.values.accumulator) != o.Contributions {
				panic("Contributions is wrong")
			}
			v.values.rounds = append(v.values.rounds, v.values.accumulator)
			v.values.accumulator = nil
		case Assign:
			v.values.rounds = append(v.values.rounds, []contribution{v.buffer(o.Request, Set)})
			delete(v.buffers, o.Request)
		case ReplicaAcknowledge:
			s.send(v.id, v.primary, message{epoch: v.m.epoch, in: Input{Kind: ReplicaDone, Server: v.id, Index: o.Index}})
		case Acknowledge, Answer, Refuse:
			q, ok := v.requests[o.Request]
			delete(v.requests, o.Request)
			if o.Repeated || o.Kind == Refuse {
				delete(v.buffers, o.Request)
			}
			if o.Kind == Refuse && (o.Refusal == Sealed || o.Refusal == OtherEpoch) {
				continue
			}
			if !ok || q.from < 100 {
				panic(fmt.Sprintf("%v %v for no client's request %d", o.Kind, o.Refusal, o.Request))
			}
			answer := message{epoch: v.m.epoch, out: o, op: q.op}
			if o.Kind == Answer {
				answer.shown = v.values.clone().rounds
			}
			s.send(v.id, q.from, answer)
		}
	}
}

// buffer returns the buffer of a request, which must have one, unless the entry is a Close.
func (v *server) buffer(request uint64, entry InputKind) contribution {
	b, ok := v.buffers[request]
	if !ok && entry != Close {
		panic(fmt.Sprintf("request %d has no buffer", request))
	}
	return b
}

// deliver delivers the next message from pair[0] to pair[1]. Numbers from 100 on are clients. A
// message to a server that was killed, or that has no Machine, is lost.
func (s *sim) deliver(t *testing.T, pair [2]int) {
	m := s.network[pair][0]
	s.network[pair] = s.network[pair][1:]
	if pair[1] >= 100 {
		s.reply(t, s.clients[pair[1]-100], m)
		return
	}
	v := s.servers[pair[1]]
	if v.killed || v.m == nil {
		return
	}
	m.in.Epoch = m.epoch
	if m.in.Kind != ReplicaDone {
		s.next++
		m.in.Request = s.next
		if m.in.Kind == Push || m.in.Kind == Set || m.in.Kind == Replicate && m.in.Entry != Close {
			v.buffers[s.next] = m.data
		}
		v.requests[s.next] = m
	}
	outputs := v.m.Step(m.in)
	s.logf("%d -> %d: %+v: %v", pair[0], pair[1], m.in, outputs)
	if m.in.Kind == Replicate {
		delete(v.requests, m.in.Request)
	}
	s.execute(v, outputs)
}

// reply handles the answer to a client's request.
func (s *sim) reply(t *testing.T, c *simClient, m message) {
	if c.killed || m.epoch != c.epoch || m.op == again {
		return
	}
	i := slices.IndexFunc(c.ops, func(o *op) bool { return o.id == m.op })
	if i < 0 {
		t.Fatalf("client %d: %v for an operation that has ended", c.id, m.out.Kind)
	}
	o := c.ops[i]
	c.ops = slices.Delete(c.ops, i, i+1)
	s.logf("client %d: %v %+v: %+v", c.id, o.kind, *o, m.out)
	switch {
	case m.out.Kind == Refuse && m.out.Refusal == WorkersLost:
		c.failed = true
		// A program ends, or builds a new job; here, the client does nothing but close.
		c.script = []InputKind{Close}[:min(1, len(c.script))]
	case m.out.Kind == Refuse:
		t.Fatalf("client %d: a %v is refused: %v", c.id, o.kind, m.out.Refusal)
	case (m.out.Kind == Answer) != (o.kind == Pull):
		t.Fatalf("client %d: a %v gets an %v", c.id, o.kind, m.out.Kind)
	case m.out.Kind == Answer:
		s.checkPull(t, c, o, m)
	case o.kind != Close:
		c.acked = append(c.acked, o.seq)
	}
}

// checkPull checks what a pull shows.
func (s *sim) checkPull(t *testing.T, c *simClient, o *op, m message) {
	t.Helper()
	count := map[uint64]int{}
	versions := 0
	for _, r := range m.shown {
		if !r[0].set {
			versions++
		}
		for _, p := range r {
			if !p.set {
				count[p.client]++
			}
		}
	}
	if uint64(versions) != m.out.Version {
		t.Fatalf("client %d: an answer names version %d, and shows %d", c.id, m.out.Version, versions)
	}
	if c.failed {
		return // its pushes were refused, so that it does not know how many count
	}
	if uint64(count[c.id]) < o.pushes || s.cfg.Mode == Synchronous && uint64(count[c.id]) != o.pushes {
		t.Fatalf("client %d: a pull after %d pushes shows %d of them", c.id, o.pushes, count[c.id])
	}
	if s.cfg.Mode == Synchronous && m.out.Version != c.base+o.pushes {
		t.Fatalf("client %d: a pull after %d pushes since version %d shows version %d", c.id, o.pushes, c.base, m.out.Version)
	}
	if s.cfg.Mode != Bounded {
		return
	}
	for _, other := range s.clients {
		if other.killed || other.base != 0 || c.base != 0 || len(other.script) == 0 || other.failed {
			continue // not in the bound, or the clocks have different origins
		}
		if uint64(count[other.id])+s.cfg.Staleness < o.pushes {
			t.Fatalf("client %d: a pull after %d pushes shows %d of client %d, want at most %d less",
				c.id, o.pushes, count[other.id], other.id, s.cfg.Staleness)
		}
	}
}

// run lets everything happen in random order until nothing is left to do.
func (s *sim) run(t *testing.T, faults int) {
	if !s.begin() {
		t.Fatal("no copy")
	}
	for {
		var pairs [][2]int
		for pair, queue := range s.network {
			if len(queue) > 0 {
				pairs = append(pairs, pair)
			}
		}
		slices.SortFunc(pairs, func(a, b [2]int) int { return a[0]*1000 + a[1] - b[0]*1000 - b[1] })
		var ready []*simClient
		for _, c := range s.clients {
			if !c.killed && s.joined[c.id] && len(c.script) > 0 && len(c.ops) < 6 && !s.mustWait(c) {
				ready = append(ready, c)
			}
		}
		if n := len(pairs) + len(ready); n == 0 {
			return
		} else if faults > 0 && s.rnd.IntN(40) == 0 {
			faults--
			if !s.fault() {
				return
			}
		} else if i := s.rnd.IntN(n); i < len(pairs) {
			s.deliver(t, pairs[i])
		} else {
			s.nextOp(ready[i-len(pairs)])
		}
	}
}

// fault kills or stops a server, kills a client, adds one, or begins an epoch without a loss. It
// leaves as many servers as a part has copies. It returns false if the part is lost.
func (s *sim) fault() bool {
	var live []*server
	for _, v := range s.servers {
		if !v.killed && !v.stopped {
			live = append(live, v)
		}
	}
	var workers []*simClient
	for _, c := range s.clients {
		if !c.killed {
			workers = append(workers, c)
		}
	}
	switch s.rnd.IntN(6) {
	case 0, 1, 2:
		if len(live) < 2 {
			return s.begin()
		}
		v := live[s.rnd.IntN(len(live))]
		v.killed = s.rnd.IntN(2) == 0
		v.stopped = !v.killed
		s.logf("server %d ends; stopped: %v", v.id, v.stopped)
		if v.killed {
			// What it has sent may arrive in part.
			for pair, queue := range s.network {
				if pair[0] == v.id {
					s.network[pair] = queue[:s.rnd.IntN(len(queue)+1)]
				}
			}
		}
	case 3:
		if len(workers) < 2 {
			return s.begin()
		}
		c := workers[s.rnd.IntN(len(workers))]
		c.killed = true
		s.lost = append(s.lost, c.id)
		s.logf("client %d is killed", c.id)
	case 4:
		s.addClient()
		s.lost = nil // a program that goes on with a new worker has dealt with the loss
	}
	return s.begin()
}

// check checks the end: nothing waits, and what was acknowledged has been applied once, in order.
func (s *sim) check(t *testing.T) {
	t.Helper()
	var first *server
	for _, v := range s.servers {
		if v.killed || v.stopped || v.m == nil {
			continue
		}
		if v.m.Waiting() > 0 {
			t.Errorf("server %d has %d requests at the end", v.id, v.m.Waiting())
		}
		held := 0
		for _, c := range v.m.State().Clients {
			if c.Share == Held {
				held++
			}
		}
		if len(v.buffers) != held {
			t.Errorf("server %d has %d buffers at the end, and %d contributions are held", v.id, len(v.buffers), held)
		}
		if first == nil {
			first = v
		} else if fmt.Sprint(first.values) != fmt.Sprint(v.values) {
			t.Errorf("server %d has %v, server %d has %v", first.id, first.values, v.id, v.values)
		}
	}
	if first == nil {
		t.Fatal("no copy at the end")
	}
	for _, c := range s.clients {
		if !c.killed && len(c.ops) > 0 {
			t.Errorf("client %d waits: %v seq %d", c.id, c.ops[0].kind, c.ops[0].seq)
		}
	}
	count := map[contribution]int{}
	last := map[uint64]uint64{}
	state := first.m.State()
	rounds := append(slices.Clone(first.values.rounds), first.values.accumulator)
	for _, c := range state.Clients {
		if c.Share == Held {
			rounds = append(rounds, []contribution{first.buffers[c.Request]})
		}
	}
	for n, r := range rounds {
		for i, p := range r {
			count[p]++
			if p.seq <= last[p.client] {
				t.Errorf("round %d applies seq %d of client %d after seq %d", n, p.seq, p.client, last[p.client])
			}
			last[p.client] = p.seq
			if i > 0 && r[i-1].client >= p.client {
				t.Errorf("round %d is not in rank order: %v", n, r)
			}
		}
	}
	for p, n := range count {
		if n != 1 {
			t.Errorf("%+v is applied %d times", p, n)
		}
	}
	for _, c := range s.clients {
		for _, seq := range c.acked {
			if count[contribution{c.id, seq, false}]+count[contribution{c.id, seq, true}] != 1 {
				t.Errorf("client %d: seq %d was acknowledged and is lost", c.id, seq)
			}
		}
	}
	if s.cfg.Mode == Synchronous {
		s.checkRounds(t, first.values.rounds)
	}
}

// checkRounds checks that a client is in every round from its first to its last one.
func (s *sim) checkRounds(t *testing.T, rounds [][]contribution) {
	t.Helper()
	at := map[uint64][]int{}
	n := 0
	for _, r := range rounds {
		if r[0].set {
			continue
		}
		for _, p := range r {
			at[p.client] = append(at[p.client], n)
		}
		n++
	}
	for _, id := range slices.Sorted(maps.Keys(at)) {
		if in := at[id]; in[len(in)-1]-in[0] != len(in)-1 {
			t.Errorf("client %d is in the rounds %v, with gaps", id, in)
		}
	}
}

// TestRandomRuns lets pushes, pulls, losses and epochs happen in random orders. No acknowledged
// push is lost, none is applied twice, pulls show what their mode promises, and nothing waits for
// ever.
func TestRandomRuns(t *testing.T) {
	modes := []Config{
		{Mode: Synchronous}, {Mode: Synchronous, Policy: Continue}, {Mode: Asynchronous},
		{Mode: Bounded}, {Mode: Bounded, Staleness: 2, Policy: Continue},
	}
	seeds := uint64(150)
	if testing.Short() {
		seeds = 25
	}
	for _, cfg := range modes {
		for _, size := range []struct{ servers, copies int }{{1, 1}, {2, 2}, {3, 2}, {3, 3}} {
			t.Run(fmt.Sprintf("%+v on %+v", cfg, size), func(t *testing.T) {
				for seed := range seeds {
					s := newSim(seed, cfg, size.servers, size.copies, 1+int(seed%3), 6)
					s.run(t, int(seed%5))
					s.check(t)
					if t.Failed() {
						t.Fatalf("seed %d:\n%s", seed, s.tail())
					}
				}
			})
		}
	}
}

func (s *sim) tail() string {
	out := ""
	for _, l := range s.trace[max(0, len(s.trace)-60):] {
		out += l + "\n"
	}
	return out
}

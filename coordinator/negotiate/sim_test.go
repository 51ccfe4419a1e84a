package negotiate

import (
	"fmt"
	"slices"
)

// A sim is a coordinator of several ranks in one loop: messages go through their
// wire form, wait in queues, and are delivered in an order that the test chooses.
type sim struct {
	now     Time
	leader  *Leader
	members []*Member
	ups     [][][]byte // to the leader, by sender
	downs   [][][]byte // to each rank
	held    Bits       // ranks that hear and tell nothing
	busy    Bits       // ranks that carry out nothing
	runs    [][]*Bucket
	trace   func(format string, args ...any)
	tickets Ticket
	at      string // what ranks say when asked where they are

	log  [][]string          // what each rank has run
	fate []map[Ticket]string // what became of each submission, by rank
	end  []string
}

func newSim(cfg Config) *sim {
	s := &sim{leader: NewLeader(cfg), trace: func(string, ...any) {}, at: "train.go:99"}
	n := cfg.Size
	s.ups, s.downs, s.runs = make([][][]byte, n), make([][][]byte, n), make([][]*Bucket, n)
	s.log, s.end = make([][]string, n), make([]string, n)
	for r := range n {
		s.members = append(s.members, NewMember(cfg, r))
		s.fate = append(s.fate, make(map[Ticket]string))
	}
	return s
}

// tell gives a Member an input.
func (s *sim) tell(rank int, in MemberInput) {
	for _, o := range s.members[rank].Step(s.now, in) {
		switch o := o.(type) {
		case Send:
			s.trace("%d sends %v", rank, o.Up)
			s.ups[rank] = append(s.ups[rank], AppendUp(nil, o.Up))
			continue
		case Run:
			s.runs[rank] = append(s.runs[rank], o.Bucket)
			if o.Bucket.Outside {
				continue
			}
			s.log[rank] = append(s.log[rank], o.String())
		case Fail:
			for _, t := range o.Tickets {
				s.settle(rank, t, o.Err.Error())
			}
			s.trace("%d: fail: %v", rank, o.Err)
			continue
		case Joined:
			s.settle(rank, o.Ticket, o.String())
			s.log[rank] = append(s.log[rank], o.String())
		case Set:
			if o.Ticket != 0 {
				s.settle(rank, o.Ticket, o.String())
			}
			s.log[rank] = append(s.log[rank], o.String())
		case Tuned:
			s.log[rank] = append(s.log[rank], o.String())
		case Where:
			defer s.tell(rank, Here{s.at})
		case End:
			s.end[rank] = o.String()
		}
		s.trace("%d: %v", rank, o)
	}
}

// settle notes what became of a submission; twice is an error.
func (s *sim) settle(rank int, t Ticket, what string) {
	if old, twice := s.fate[rank][t]; twice || t == 0 {
		panic(fmt.Sprintf("rank %d, ticket %d: %q after %q", rank, t, what, old))
	}
	s.fate[rank][t] = what
}

func (s *sim) lead(in LeaderInput) {
	for _, o := range s.leader.Step(s.now, in) {
		if o, ok := o.(Tell); ok {
			b := AppendDown(nil, o.Down)
			for r := range s.downs {
				s.downs[r] = append(s.downs[r], b)
			}
		}
		s.trace("leader: %v", o)
	}
}

// submit submits requests on a rank as one.
func (s *sim) submit(rank int, rs ...Request) (first Ticket) {
	tickets := make([]Ticket, len(rs))
	for i := range tickets {
		s.tickets++
		tickets[i] = s.tickets
	}
	s.tell(rank, Submit{rs, tickets})
	return tickets[0]
}

// A move is one thing that can happen next.
type move struct {
	kind byte // 'u' a message to the leader, 'd' one from it, 'x' a Bucket carried out
	rank int
}

// moves are all that can happen now.
func (s *sim) moves() (list []move) {
	for r := range s.members {
		if len(s.ups[r]) > 0 && !s.held.Has(r) {
			list = append(list, move{'u', r})
		}
		if len(s.downs[r]) > 0 && !s.held.Has(r) {
			list = append(list, move{'d', r})
		}
		if len(s.runs[r]) > 0 && !s.busy.Has(r) {
			list = append(list, move{'x', r})
		}
	}
	return list
}

func (s *sim) make(m move) {
	switch m.kind {
	case 'u':
		up, err := ParseUp(s.ups[m.rank][0])
		if err != nil {
			panic(err)
		}
		s.ups[m.rank] = s.ups[m.rank][1:]
		s.lead(Told{m.rank, up})
	case 'd':
		down, err := ParseDown(s.downs[m.rank][0])
		if err != nil {
			panic(err)
		}
		s.downs[m.rank] = s.downs[m.rank][1:]
		s.tell(m.rank, Heard{down})
	case 'x':
		b := s.runs[m.rank][0]
		s.runs[m.rank] = s.runs[m.rank][1:]
		for _, ref := range b.Refs {
			if ref.Ticket != 0 && b.Part+1 == b.Parts {
				s.settle(m.rank, ref.Ticket, "done"+without(b.Absent))
			}
		}
		s.tell(m.rank, Finished{b})
		if m.rank == 0 {
			s.lead(Carried{b.Cost})
		}
	}
}

// run makes all moves that can be made, in a fixed order.
func (s *sim) run() {
	for list := s.moves(); len(list) > 0; list = s.moves() {
		s.make(list[0])
	}
}

// tick lets time pass for all.
func (s *sim) tick(d Span) {
	s.now += Time(d)
	for r := range s.members {
		s.tell(r, Tick{})
	}
	s.lead(Tick{})
}

// next is the soonest moment at which somebody wants to look again.
func (s *sim) next() (wait Span, ok bool) {
	var spans []Span
	for _, m := range s.members {
		if w, some := m.Next(); some {
			spans = append(spans, w)
		}
	}
	if w, some := s.leader.Next(); some {
		spans = append(spans, w)
	}
	if spans == nil {
		return 0, false
	}
	return slices.Min(spans), true
}

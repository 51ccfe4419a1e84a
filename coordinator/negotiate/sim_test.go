package negotiate

import (
	"fmt"
	"slices"
)

// A sim runs a coordinator with several ranks in one loop. Lists pass through their wire form, wait
// in queues, and are delivered in an order that the test chooses.
type sim struct {
	now         Time
	coordinator *Coordinator
	workers     []*Worker
	requests    [][][]byte // to the Coordinator, by sender
	responses   [][][]byte // to each rank
	paused      Bitset     // these ranks receive and send nothing
	busy        Bitset     // these ranks execute nothing
	runs        [][]*Bucket
	trace       func(format string, args ...any)
	submissions SubmissionID
	location    string // the answer of all ranks to Locate

	log  [][]string                // what each rank has executed
	ran  []map[uint32][]string     // what each rank has executed, by process set
	fate []map[SubmissionID]string // the outcome of each submission, by rank
	end  []string
}

func newSim(cfg Config) *sim {
	s := &sim{coordinator: NewCoordinator(cfg), trace: func(string, ...any) {}, location: "train.go:99"}
	n := cfg.Size
	s.requests, s.responses, s.runs = make([][][]byte, n), make([][][]byte, n), make([][]*Bucket, n)
	s.log, s.end = make([][]string, n), make([]string, n)
	for r := range n {
		s.workers = append(s.workers, NewWorker(cfg, r))
		s.fate = append(s.fate, make(map[SubmissionID]string))
		s.ran = append(s.ran, make(map[uint32][]string))
	}
	return s
}

// stepWorker gives a Worker an input and delivers its outputs.
func (s *sim) stepWorker(rank int, in WorkerInput) {
	for _, o := range s.workers[rank].Step(s.now, in) {
		switch o := o.(type) {
		case SendRequests:
			s.trace("%d sends %v", rank, o.List)
			s.requests[rank] = append(s.requests[rank], AppendRequestList(nil, o.List))
			continue
		case Run:
			s.runs[rank] = append(s.runs[rank], o.Bucket)
			if o.Bucket.Outside {
				continue
			}
			s.log[rank] = append(s.log[rank], o.String())
			set := o.Bucket.Entries[0].Spec.Set
			s.ran[rank][set] = append(s.ran[rank][set], o.String())
		case Fail:
			for _, t := range o.Submissions {
				s.record(rank, t, o.Err.Error())
			}
			s.trace("%d: fail: %v", rank, o.Err)
			continue
		case JoinDone:
			s.record(rank, o.Submission, o.String())
			s.log[rank] = append(s.log[rank], o.String())
		case SetChanged:
			if o.Submission != 0 {
				s.record(rank, o.Submission, o.String())
			}
			s.log[rank] = append(s.log[rank], o.String())
		case Tuned:
			s.log[rank] = append(s.log[rank], o.String())
		case Locate:
			defer s.stepWorker(rank, Location{s.location})
		case End:
			s.end[rank] = o.String()
		}
		s.trace("%d: %v", rank, o)
	}
}

// record records the outcome of a submission. A second outcome is an error.
func (s *sim) record(rank int, t SubmissionID, what string) {
	if old, twice := s.fate[rank][t]; twice || t == 0 {
		panic(fmt.Sprintf("rank %d, ticket %d: %q after %q", rank, t, what, old))
	}
	s.fate[rank][t] = what
}

func (s *sim) stepCoordinator(in CoordinatorInput) {
	for _, o := range s.coordinator.Step(s.now, in) {
		if o, ok := o.(SendResponses); ok {
			b := AppendResponseList(nil, o.List)
			for r := range s.responses {
				s.responses[r] = append(s.responses[r], b)
			}
		}
		s.trace("coordinator: %v", o)
	}
}

// submit submits requests together on one rank.
func (s *sim) submit(rank int, rs ...TensorRequest) (first SubmissionID) {
	submissions := make([]SubmissionID, len(rs))
	for i := range submissions {
		s.submissions++
		submissions[i] = s.submissions
	}
	s.stepWorker(rank, Submit{rs, submissions})
	return submissions[0]
}

// A move is one event that can happen next in a sim.
type move struct {
	// 'u': a list reaches the Coordinator; 'd': a list reaches the Worker; 'x': a Bucket is
	// executed
	kind byte
	rank int
}

// moves returns all moves that can be made now.
func (s *sim) moves() (list []move) {
	for r := range s.workers {
		if len(s.requests[r]) > 0 && !s.paused.Has(r) {
			list = append(list, move{'u', r})
		}
		if len(s.responses[r]) > 0 && !s.paused.Has(r) {
			list = append(list, move{'d', r})
		}
		if len(s.runs[r]) > 0 && !s.busy.Has(r) {
			list = append(list, move{'x', r})
		}
	}
	return list
}

func (s *sim) do(m move) {
	switch m.kind {
	case 'u':
		requests, err := ParseRequestList(s.requests[m.rank][0])
		if err != nil {
			panic(err)
		}
		s.requests[m.rank] = s.requests[m.rank][1:]
		s.stepCoordinator(RequestsReceived{m.rank, requests})
	case 'd':
		responses, err := ParseResponseList(s.responses[m.rank][0])
		if err != nil {
			panic(err)
		}
		s.responses[m.rank] = s.responses[m.rank][1:]
		s.stepWorker(m.rank, ResponsesReceived{responses})
	case 'x':
		b := s.runs[m.rank][0]
		s.runs[m.rank] = s.runs[m.rank][1:]
		for _, ref := range b.Entries {
			if ref.Submission != 0 && b.Part+1 == b.Parts {
				s.record(m.rank, ref.Submission, "done"+without(b.Absent))
			}
		}
		s.stepWorker(m.rank, Finished{b})
		if m.rank == 0 {
			s.stepCoordinator(Executed{b.Cost})
		}
	}
}

// run makes moves in a fixed order until none is left.
func (s *sim) run() {
	for list := s.moves(); len(list) > 0; list = s.moves() {
		s.do(list[0])
	}
}

// tick lets time pass for all state machines.
func (s *sim) tick(d Duration) {
	s.now += Time(d)
	for r := range s.workers {
		s.stepWorker(r, Tick{})
	}
	s.stepCoordinator(Tick{})
}

// next returns the time until the first state machine needs its next Step.
func (s *sim) next() (wait Duration, ok bool) {
	var spans []Duration
	for _, m := range s.workers {
		if w, some := m.Next(); some {
			spans = append(spans, w)
		}
	}
	if w, some := s.coordinator.Next(); some {
		spans = append(spans, w)
	}
	if spans == nil {
		return 0, false
	}
	return slices.Min(spans), true
}

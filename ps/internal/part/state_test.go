package part

import (
	"reflect"
	"testing"
)

func states() []State {
	return []State{
		{Clients: []ClientState{}},
		{Index: 1 << 63, Version: 1<<64 - 1, Clients: []ClientState{{ID: 1<<64 - 1, Seq: 1 << 40, Before: 3, Clock: 7, Closed: true, Share: Held, Request: 12}}},
		{Index: 2, Version: 1, Clients: []ClientState{{ID: 1, Seq: 1, Clock: 1}, {ID: 2, Seq: 1, Clock: 1, Share: Folded}}},
	}
}

func TestAStateSurvivesItsForm(t *testing.T) {
	for _, s := range states() {
		b := s.Append([]byte("head"))[4:]
		got, ok := ParseState(b)
		if !ok || !reflect.DeepEqual(got, s) {
			t.Errorf("got %+v and %v, want %+v", got, ok, s)
		}
		if _, ok := ParseState(append(b, 0)); ok {
			t.Error("a byte too many is not noticed")
		}
		for n := range b {
			if _, ok := ParseState(b[:n]); ok {
				t.Errorf("%d of %d bytes are taken for a State", n, len(b))
			}
		}
	}
	for _, marks := range []byte{3, 7, 8} {
		b := State{Clients: make([]ClientState, 1)}.Append(nil)
		b[len(b)-2] = marks
		if _, ok := ParseState(b); ok {
			t.Errorf("marks %d are taken for a ClientState's", marks)
		}
	}
}

func FuzzParseState(f *testing.F) {
	for _, s := range states() {
		f.Add(s.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := ParseState(b)
		if !ok {
			return
		}
		again, ok := ParseState(s.Append(nil))
		if !ok || !reflect.DeepEqual(again, s) {
			t.Errorf("got %+v and %v, want %+v", again, ok, s)
		}
	})
}

// TestAStateAtItsVersionForgetsContributions restores what a snapshot has of an incomplete round. The
// push that was in the round is new, and those before it are resends.
func TestAStateAtItsVersionForgetsContributions(t *testing.T) {
	m := New(Config{}, State{})
	m.Begin(Members{Epoch: 1, Primary: true, Workers: []uint64{7, 8}})
	for i, in := range []Input{{Client: 7, Seq: 1}, {Client: 8, Seq: 1}, {Client: 7, Seq: 2}} {
		in.Kind, in.Epoch, in.Request = Push, 1, uint64(i+1)
		m.Step(in)
	}
	r := New(Config{}, m.State().AtVersion())
	r.Begin(Members{Epoch: 2, Primary: true, Workers: []uint64{7, 8}})
	for _, step := range []struct {
		client, seq uint64
		repeated    bool
	}{{7, 1, true}, {8, 1, true}, {7, 2, false}} {
		out := r.Step(Input{Kind: Push, Epoch: 2, Client: step.client, Seq: step.seq, Request: 9})
		if last := out[len(out)-1]; last.Kind != Acknowledge || last.Repeated != step.repeated {
			t.Errorf("push %d of client %d: got %v, want an acknowledgement with repeated %v", step.seq, step.client, out, step.repeated)
		}
	}
	if r.Version() != 1 || r.Index() != m.Index()+1 {
		t.Errorf("got version %d and index %d, want 1 and %d", r.Version(), r.Index(), m.Index()+1)
	}
}

func TestLagIsThatOfTheSlowestWorker(t *testing.T) {
	m := New(Config{Mode: Asynchronous}, State{Clients: []ClientState{{ID: 1, Clock: 9}, {ID: 2, Clock: 4}, {ID: 3, Clock: 1, Closed: true}}})
	if got := m.Lag(); got != 5 {
		t.Errorf("got %d, want 5", got)
	}
}

// TestAStepDoesNotAllocate runs rounds of two workers with a pull each, on a primary with a replica.
func TestAStepDoesNotAllocate(t *testing.T) {
	m := New(Config{}, State{})
	m.Begin(Members{Epoch: 1, Primary: true, Replicas: []int{1}, Workers: []uint64{7, 8}})
	seq, name := uint64(0), uint64(0)
	step := func(k InputKind, client uint64) {
		name++
		m.Step(Input{Kind: k, Epoch: 1, Client: client, Seq: seq, Request: name})
	}
	if n := testing.AllocsPerRun(100, func() {
		seq++
		for client := uint64(7); client < 9; client++ {
			step(Push, client)
			step(Pull, client)
		}
		m.Step(Input{Kind: ReplicaDone, Epoch: 1, Server: 1, Index: 2 * seq})
	}); n != 0 {
		t.Errorf("a round allocates %v times, want 0", n)
	}
	if m.Version() != seq || m.Waiting() != 0 {
		t.Errorf("got version %d and %d requests, want %d and 0", m.Version(), m.Waiting(), seq)
	}
}

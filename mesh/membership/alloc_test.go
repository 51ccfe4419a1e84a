package membership

import "testing"

func TestAnIdleStateAllocatesNothing(t *testing.T) {
	const size = 6
	s := New(Config{Size: size, Joined: true, Heartbeat: 250 * Millisecond, Silence: 4 * Second})
	now, sent := Time(0), 0
	for r := 1; r < size; r++ {
		s.Step(now, LinkUp{r})
		s.Step(now, &Received{r, Message{Kind: Alive, Code: 1, Origin: r, Seq: 1, Body: []byte("h")}})
	}
	body := []byte("allreduce #41")
	var in Received
	turn := func() {
		now += Time(250 * Millisecond)
		for r := 1; r < size; r++ {
			in = Received{r, Message{Kind: Heartbeat, Origin: r, Body: body}}
			sent += len(s.Step(now, &in))
		}
		sent += len(s.Step(now, Tick{}))
	}
	turn()
	turn()
	sent = 0
	const turns = 100
	if got := testing.AllocsPerRun(turns, turn); got != 0 {
		t.Errorf("a turn makes %v pieces of garbage, want none", got)
	}
	// AllocsPerRun runs the function once more than asked.
	if want := (turns + 1) * (size - 1); sent != want {
		t.Errorf("got %d outputs, want a heartbeat to each rank, %d", sent, want)
	}
}

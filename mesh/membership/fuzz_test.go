package membership

import (
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// FuzzStep gives a Machine any events in any order, and messages that no correct rank sends. The
// Machine must not panic, must not address ranks that do not exist, and must not want to be woken
// in the past.
func FuzzStep(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 1, 2, 0, 0, 3, 1, 3, 9})
	f.Add([]byte{0, 1, 0, 0, 2, 1, 0, 0, 4, 2, 0, 0, 5, 0, 0, 0, 6, 7, 1, 1, 9, 0, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		const size = 5
		s := New(Config{Me: 2, Size: size, Host: "h", Joined: len(script)%2 == 0, Heartbeat: 250 * Millisecond, Silence: 4 * Second})
		now := Time(0)
		for ; len(script) >= 4; script = script[4:] {
			now += Time(script[3]) * Time(20*Millisecond)
			for _, o := range s.Step(now, fuzzInput(script)) {
				checkOutput(t, s, o, size)
			}
			if s.Next() < 0 {
				t.Fatalf("wants to be woken %v ago", -s.Next())
			}
		}
	})
}

// fuzzInput makes an Input from four bytes.
func fuzzInput(b []byte) Input {
	r, arg := int(b[1]%5), b[2]
	if r == 2 {
		r = 3 // package mesh never names the rank itself
	}
	switch b[0] % 14 {
	case 0:
		return LinkUp{r}
	case 1:
		return LinkDown{Rank: r, Stalled: r%2 == 0, Cause: "fuzz"}
	case 2:
		return DialFailed{Rank: r, Evicted: arg == 7}
	case 3:
		return DataLinkDown{r, "fuzz"}
	case 4:
		return Flood{arg, b}
	case 5:
		return Question{ID: uint64(arg), Ranks: []int{r, 2}, Body: b}
	case 6:
		return Reply{r, uint32(arg), b}
	case 7:
		if arg < 250 {
			return Resync{r}
		}
		return Goodbye{}
	case 8:
		e := fault.New(fault.Kind(arg%10+1), "fuzz", r, "x")
		e.Peers = []fault.Peer{{Rank: int(arg) - 2}}
		return Announce{Err: e, Exiting: arg > 200}
	case 9:
		return CancelQuestion{uint64(arg)}
	case 10:
		return Fence{uint64(arg)}
	case 11:
		return CancelFence{uint64(arg)}
	}
	m := Message{Kind: MessageKind(arg % 16), Code: b[3] % 4, Origin: int(b[1] / 5 % 6), Seq: uint32(arg), About: int(arg % 6), Ref: uint32(b[3] % 8), Body: b}
	if m.Kind == Failure {
		e := fault.New(fault.PeerLost, "fuzz", r, "x")
		e.Peers = []fault.Peer{{Rank: int(arg % 7)}}
		m.Body = e.AppendWire(nil)
	}
	return Received{r, m}
}

func checkOutput(t *testing.T, s *Machine, o Output, size int) {
	t.Helper()
	_ = o.String()
	switch o := o.(type) {
	case Send:
		if o.To < 0 || o.To >= size || o.To == s.cfg.Me {
			t.Fatalf("%v", o)
		}
	case Dial:
		if o.Rank < 0 || o.Rank >= size || o.Rank == s.cfg.Me {
			t.Fatalf("%v", o)
		}
	case Report:
		if !s.knownRanks(o.Err) {
			t.Fatalf("%v", o)
		}
	}
}

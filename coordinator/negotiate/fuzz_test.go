package negotiate

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/golden"
	"github.com/tutti-go/tutti/tensor"
)

func sampleTensor() Tensor {
	return Tensor{
		Set: 3, Name: "layer.1/weight", Kind: AllReduce, DType: tensor.Float32, Wire: tensor.BF16, Shape: []int{64, 3, 3},
		Op: "mean", OpID: 0x1122334455667788, NoIdentity: true, Root: -1, Pre: 0.5, Post: 2, Priority: -4, Group: 9, GroupSize: 2,
	}
}

func sampleUp() *Up {
	gather := Tensor{Name: "rows", Kind: AllGather, DType: tensor.Int64, Wire: tensor.Int64, Shape: []int{-1, 4}, Root: -1, Pre: 1, Post: 1}
	return &Up{
		Ack: 300, Cached: Bits{1 | 1<<63, 1 << 5}, Join: true, IsHere: true, Here: "train.go:88",
		Requests: []Request{
			{Tensor: sampleTensor(), Site: "train.go:12"},
			{Tensor: gather, Rows: 5, Splits: []int{1, 4}, Site: "train.go:13"},
		},
		Fault: &fault.Error{Kind: fault.PeerLost, Op: "allreduce", Rank: 2, Peers: []fault.Peer{{Rank: 1, Host: "b"}}},
	}
}

func sampleDown() *Down {
	a := sampleTensor()
	return &Down{
		Seq:      7,
		Meanings: []Meaning{{ID: 12, Tensor: &a}, {ID: 1030, Once: true, Tensor: &a, Rows: []int{1, 0, 7}}},
		Items: []Item{
			{Kind: ItemRun, Runs: []Span32{{0, 12}, {1030, 1}}, Parts: 1},
			{Kind: ItemRun, Runs: []Span32{{12, 1}}, Part: 2, Parts: 3, Ranks: []int{1, 4}},
			{Kind: ItemFail, Failed: []Named{{3, "layer.1/weight"}}, Err: fault.New(fault.Mismatch, "allreduce", 0, "shape")},
			{Kind: ItemJoined, Rank: 3}, {Kind: ItemSet, ID: 1, Name: "evens", Ranks: []int{0, 2}}, {Kind: ItemUnset, ID: 1, Name: "evens"},
			{Kind: ItemWhere, Ranks: []int{2}}, {Kind: ItemAbort, Err: fault.New(fault.Timeout, "x", 0, "")}, {Kind: ItemBye},
			{Kind: ItemTune, Tuning: Tuning{Cycle: Second, Fusion: 5, Cache: true, Class: 2}},
		},
		Over: []uint32{4, 5},
	}
}

// TestWireFormIsThatOfTheGoldenFile fails when the bytes change: then the version
// must change, too, or -update was forgotten.
func TestWireFormIsThatOfTheGoldenFile(t *testing.T) {
	const name = "testdata/wire.golden"
	text := "up " + hex.EncodeToString(AppendUp(nil, sampleUp())) + "\ndown " + hex.EncodeToString(AppendDown(nil, sampleDown())) + "\n"
	golden.Compare(t, name, text)
	up, err := ParseUp(AppendUp(nil, sampleUp()))
	if err != nil || up.String() != sampleUp().String() || !reflect.DeepEqual(up.Requests, sampleUp().Requests) || !reflect.DeepEqual(up.Cached, sampleUp().Cached) {
		t.Errorf("got %v, %v\nwant %v", up, err, sampleUp())
	}
	down, err := ParseDown(AppendDown(nil, sampleDown()))
	if err != nil || down.String() != sampleDown().String() || !reflect.DeepEqual(down.Meanings, sampleDown().Meanings) {
		t.Errorf("got %v, %v\nwant %v", down, err, sampleDown())
	}
}

func TestMessagesThatAreCutOrLongerAreRefused(t *testing.T) {
	up, down := AppendUp(nil, sampleUp()), AppendDown(nil, sampleDown())
	for n := range up {
		if m, err := ParseUp(up[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were read as %v", n, len(up), m)
		}
	}
	for n := range down {
		if m, err := ParseDown(down[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were read as %v", n, len(down), m)
		}
	}
	if _, err := ParseUp(append(up, 0)); err == nil {
		t.Error("a byte too many was read")
	}
}

// seeded adds the golden messages, which mutations start from.
func seeded(f *testing.F) {
	text, err := os.ReadFile("testdata/wire.golden")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		_, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// FuzzLeader has a rank tell the leader anything: no panic, and what was read
// reads the same when written again.
func FuzzLeader(f *testing.F) {
	seeded(f)
	f.Add(AppendUp(nil, &Up{Join: true, Leave: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		up, err := ParseUp(b)
		if err != nil {
			return
		}
		again, err := ParseUp(AppendUp(nil, up))
		if err != nil || again.String() != up.String() {
			t.Fatalf("%v was written and read as %v, %v", up, again, err)
		}
		l := NewLeader(Config{Size: 2, Cycle: Millisecond, Fusion: 100, Alone: 50, Partition: 64, Credit: 500, Cache: 2, StallWarn: Second, StallEnd: 2 * Second})
		for range 2 {
			l.Step(0, Told{0, up})
			l.Step(0, Told{1, up})
		}
		l.Step(Time(2*Millisecond), Tick{})
		l.Step(Time(3*Second), Tick{})
	})
}

// FuzzMember has the leader tell a Member anything.
func FuzzMember(f *testing.F) {
	seeded(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		down, err := ParseDown(b)
		if err != nil {
			return
		}
		again, err := ParseDown(AppendDown(nil, down))
		if err != nil || again.String() != down.String() {
			t.Fatalf("%v was written and read as %v, %v", down, again, err)
		}
		m := NewMember(Config{Size: 2, Cycle: Millisecond, Cache: 4}, 1)
		a := sampleTensor()
		a.Set = World
		m.Step(0, Submit{[]Request{{Tensor: a}}, []Ticket{1}})
		for seq := range uint32(2) {
			down.Seq = seq + 1
			for _, o := range m.Step(0, Heard{down}) {
				if r, ok := o.(Run); ok {
					m.Step(0, Finished(r))
				}
			}
		}
	})
}

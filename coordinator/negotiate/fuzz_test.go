package negotiate

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/golden"
	"github.com/tutti-go/tutti/tensor"
)

func sampleTensor() Spec {
	return Spec{
		Set: 3, Name: "layer.1/weight", Operation: AllReduce, DType: tensor.Float32, Wire: tensor.BF16, Shape: []int{64, 3, 3},
		Op: "mean", OpID: 0x1122334455667788, NoIdentity: true, Root: -1, Pre: 0.5, Post: 2, Priority: -4, Group: 9, GroupSize: 2,
	}
}

func sampleRequestList() *RequestList {
	gather := Spec{Name: "rows", Operation: AllGather, DType: tensor.Int64, Wire: tensor.Int64, Shape: []int{-1, 4}, Root: -1, Pre: 1, Post: 1}
	return &RequestList{
		Ack: 300, Cached: Bitset{1 | 1<<63, 1 << 5}, Join: true, HasLocation: true, Location: "train.go:88",
		Requests: []TensorRequest{
			{Spec: sampleTensor(), Site: "train.go:12"},
			{Spec: gather, Rows: 5, Splits: []int{1, 4}, Site: "train.go:13"},
		},
		Fault:   &fault.Error{Kind: fault.PeerLost, Op: "allreduce", Rank: 2, Peers: []fault.Peer{{Rank: 1, Host: "b"}}},
		Refused: &Refusal{[]TensorName{{0, "w1"}, {3, "w2"}}, fault.New(fault.Mismatch, "allreduce w1", 2, "refused")},
	}
}

func sampleResponseList() *ResponseList {
	a := sampleTensor()
	return &ResponseList{
		Seq:     7,
		Entries: []CacheEntry{{ID: 12, Spec: &a}, {ID: 1030, Transient: true, Spec: &a, Rows: []int{1, 0, 7}}},
		Responses: []Response{
			{Kind: ResponseRun, IDs: []IDRange{{0, 12}, {1030, 1}}, Parts: 1},
			{Kind: ResponseRun, IDs: []IDRange{{12, 1}}, Part: 2, Parts: 3, Ranks: []int{1, 4}},
			{Kind: ResponseFail, Failed: []TensorName{{3, "layer.1/weight"}}, Ranks: []int{0, 2}, Err: fault.New(fault.Mismatch, "allreduce", 0, "shape")},
			{Kind: ResponseJoined, Rank: 3}, {Kind: ResponseAddSet, ID: 1, Name: "evens", Ranks: []int{0, 2}}, {Kind: ResponseRemoveSet, ID: 1, Name: "evens"},
			{Kind: ResponseLocate, Ranks: []int{2}}, {Kind: ResponseAbort, Err: fault.New(fault.Timeout, "x", 0, "")}, {Kind: ResponseShutdown},
			{Kind: ResponseTune, Tuning: Tunables{Cycle: Second, Fusion: 5, Cache: true, Class: 2, Final: true}},
		},
		Evicted: []uint32{4, 5},
	}
}

// TestWireFormIsThatOfTheGoldenFile fails if the encoding changes. The version must then change,
// too, and the flag -update rewrites the golden file.
func TestWireFormIsThatOfTheGoldenFile(t *testing.T) {
	const name = "testdata/wire.golden"
	text := "up " + hex.EncodeToString(AppendRequestList(nil, sampleRequestList())) + "\ndown " + hex.EncodeToString(AppendResponseList(nil, sampleResponseList())) + "\n"
	golden.Compare(t, name, text)
	requests, err := ParseRequestList(AppendRequestList(nil, sampleRequestList()))
	if err != nil || requests.String() != sampleRequestList().String() || !reflect.DeepEqual(requests.Requests, sampleRequestList().Requests) || !reflect.DeepEqual(requests.Cached, sampleRequestList().Cached) {
		t.Errorf("got %v, %v\nwant %v", requests, err, sampleRequestList())
	}
	responses, err := ParseResponseList(AppendResponseList(nil, sampleResponseList()))
	if err != nil || responses.String() != sampleResponseList().String() || !reflect.DeepEqual(responses.Entries, sampleResponseList().Entries) {
		t.Errorf("got %v, %v\nwant %v", responses, err, sampleResponseList())
	}
}

func TestMessagesThatAreCutOrLongerAreRefused(t *testing.T) {
	requests, responses := AppendRequestList(nil, sampleRequestList()), AppendResponseList(nil, sampleResponseList())
	for n := range requests {
		if m, err := ParseRequestList(requests[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were read as %v", n, len(requests), m)
		}
	}
	for n := range responses {
		if m, err := ParseResponseList(responses[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were read as %v", n, len(responses), m)
		}
	}
	if _, err := ParseRequestList(append(requests, 0)); err == nil {
		t.Error("a byte too many was read")
	}
}

// seeded adds the golden lists as seeds of the fuzzer.
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

// FuzzCoordinator sends arbitrary bytes to the Coordinator. The Coordinator must not panic, and a
// decoded list must stay the same when it is encoded and decoded again.
func FuzzCoordinator(f *testing.F) {
	seeded(f)
	f.Add(AppendRequestList(nil, &RequestList{Join: true, Shutdown: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		requests, err := ParseRequestList(b)
		if err != nil {
			return
		}
		again, err := ParseRequestList(AppendRequestList(nil, requests))
		if err != nil || again.String() != requests.String() {
			t.Fatalf("%v was written and read as %v, %v", requests, again, err)
		}
		l := NewCoordinator(Config{Size: 2, Cycle: Millisecond, Fusion: 100, MaxFusedTensor: 50, Partition: 64, Credit: 500, Cache: 2, StallWarn: Second, StallEnd: 2 * Second})
		for range 2 {
			l.Step(0, RequestsReceived{0, requests})
			l.Step(0, RequestsReceived{1, requests})
		}
		l.Step(Time(2*Millisecond), Tick{})
		l.Step(Time(3*Second), Tick{})
	})
}

// FuzzWorker is like FuzzCoordinator, for a Worker.
func FuzzWorker(f *testing.F) {
	seeded(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		responses, err := ParseResponseList(b)
		if err != nil {
			return
		}
		again, err := ParseResponseList(AppendResponseList(nil, responses))
		if err != nil || again.String() != responses.String() {
			t.Fatalf("%v was written and read as %v, %v", responses, again, err)
		}
		m := NewWorker(Config{Size: 2, Cycle: Millisecond, Cache: 4}, 1)
		a := sampleTensor()
		a.Set = World
		m.Step(0, Submit{[]TensorRequest{{Spec: a}}, []SubmissionID{1}})
		for seq := range uint32(2) {
			responses.Seq = seq + 1
			for _, o := range m.Step(0, ResponsesReceived{responses}) {
				if r, ok := o.(Run); ok {
					m.Step(0, Finished(r))
				}
			}
		}
	})
}

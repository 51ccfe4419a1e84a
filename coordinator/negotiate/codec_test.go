package negotiate

import (
	"reflect"
	"testing"

	"github.com/tutti-go/tutti/tensor"
)

func codedRequest(c Codec, keep int) TensorRequest {
	return TensorRequest{Site: "a.go:1", Spec: Spec{
		Name: "w", Operation: AllReduce, DType: tensor.Float32, Wire: tensor.Float32, Shape: []int{100}, Op: "sum", OpID: 1, Root: -1, Pre: 1, Post: 1,
		Whole: true, Codec: c, Keep: keep,
	}}
}

func TestCodedTensorsTravelAsTheyAre(t *testing.T) {
	for _, q := range []TensorRequest{codedRequest(Plain, 0), codedRequest(TopK, 300), codedRequest(OneBit, 0)} {
		got, err := ParseRequestList(AppendRequestList(nil, &RequestList{Requests: []TensorRequest{q}}))
		if err != nil || len(got.Requests) != 1 || !reflect.DeepEqual(got.Requests[0], q) {
			t.Errorf("got %+v and %v, want %+v", got.Requests, err, q)
		}
	}
	for _, q := range []TensorRequest{codedRequest(3, 0), codedRequest(TopK, 0), codedRequest(OneBit, 5)} {
		if _, err := ParseRequestList(AppendRequestList(nil, &RequestList{Requests: []TensorRequest{q}})); err == nil {
			t.Errorf("%v: it was read", q.Call())
		}
	}
}

func TestAWholeTensorIsNotCutIntoParts(t *testing.T) {
	for _, whole := range []bool{false, true} {
		s := newSim(Config{Size: 2, Partition: 100, Credit: 1 << 20, Fusion: 1 << 20, MaxFusedTensor: 10})
		q := codedRequest(Plain, 0)
		q.Whole = whole
		for r := range 2 {
			s.submit(r, q)
			s.stepWorker(r, Flush{})
		}
		s.run()
		if got, want := len(s.log[0]), map[bool]int{false: 4, true: 1}[whole]; got != want {
			t.Errorf("whole %v: it ran in %d parts, want %d: %v", whole, got, want, s.log[0])
		}
	}
}

func TestTensorsThatAreCodedOtherwiseDisagree(t *testing.T) {
	a, b := codedRequest(TopK, 3), codedRequest(TopK, 4)
	if got := a.Differs(&b.Spec); got != "compression" {
		t.Errorf("got %q, want compression", got)
	}
}

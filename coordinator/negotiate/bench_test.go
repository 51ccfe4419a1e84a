package negotiate

import (
	"fmt"
	"testing"
)

// BenchmarkStep measures the Coordinator's work for one step of 500 tensors that all ranks submit,
// without decoding. Without the cache every rank sends every request in full; with the cache it
// sends one bit per request. The benchmark also reports the bytes of a step's lists, to rank 0 and
// back.
func BenchmarkStep(b *testing.B) {
	const tensors = 500
	for _, ranks := range []int{8, 64, 512, 1024, 4096} {
		for _, cached := range []bool{false, true} {
			b.Run(fmt.Sprintf("ranks=%d/cached=%v", ranks, cached), func(b *testing.B) {
				benchmarkStep(b, ranks, tensors, cached)
			})
		}
	}
}

func benchmarkStep(b *testing.B, ranks, tensors int, cached bool) {
	cfg := Config{Size: ranks, Cycle: Millisecond, Fusion: 128 << 20, MaxFusedTensor: 256 << 10, Partition: 4 << 20, Credit: 1 << 40, Cache: 0}
	if cached {
		cfg.Cache = 1024
	}
	l := NewCoordinator(cfg)
	full := &RequestList{}
	bits := &RequestList{}
	for i := range tensors {
		q := TensorRequest{Spec: sampleTensor(), Site: "train.go:12"}
		q.Set, q.Group, q.GroupSize, q.Name = World, 0, 0, fmt.Sprintf("model/layer%d/weight", i)
		full.Requests = append(full.Requests, q)
		bits.Cached.Add(i)
	}
	step := func(requests *RequestList) (responses int) {
		for r := range ranks {
			for _, o := range l.Step(0, RequestsReceived{r, requests}) {
				if t, ok := o.(SendResponses); ok {
					responses += len(AppendResponseList(nil, t.List))
				}
			}
		}
		return responses
	}
	step(full)
	requests := full
	if cached {
		requests = bits
	}
	responses := step(requests)
	for b.Loop() {
		step(requests)
	}
	b.ReportMetric(float64(len(AppendRequestList(nil, requests))), "up-bytes/rank")
	b.ReportMetric(float64(responses), "down-bytes/rank")
}

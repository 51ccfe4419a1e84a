package main

import (
	"fmt"
	"strings"
	"testing"
)

// The number of a model's tensors and the number of their elements must equal those of the
// reference implementation of the model's paper.
func TestModelsHaveAsManyTensorsAndParametersAsPublished(t *testing.T) {
	for _, tc := range []struct {
		model             string
		tensors, elements int
	}{
		{"resnet50", 161, 25_557_032},
		{"vgg16", 32, 138_357_544},
		{"bert-base", 199, 109_482_240},
		{"small1000", 1000, 256_000},
		{"gpt", 0, 0},
	} {
		l := params(paramsOf(tc.model))
		if len(l) != tc.tensors || l.elements() != tc.elements {
			t.Errorf("%s: got %d tensors of %d elements, want %d of %d", tc.model, len(l), l.elements(), tc.tensors, tc.elements)
		}
		seen := make(map[string]bool)
		for _, p := range l {
			if seen[p.name] || p.count < 1 {
				t.Errorf("%s: tensor %s of %d elements is there twice, or empty", tc.model, p.name, p.count)
			}
			seen[p.name] = true
		}
	}
}

func TestTheCoordinatorIsSetBesideSeparateCallsAndOneWhole(t *testing.T) {
	for _, wire := range []string{"memory", "tcp"} {
		args := fmt.Sprintf("-local 3 -op coordinator -model small1000 -transport %s -time 1h -iterations 6 -format csv", wire)
		rows := records(t, bench(t, args))
		var ops []string
		for _, r := range rows {
			ops = append(ops, r["op"])
			size := "1024000"
			if r["op"] == "negotiation" {
				size = "0" // a barrier moves no bytes
			}
			if r["wrong"] != "0" || r["ranks"] != "3" || r["iterations"] != "6" || r["bytes"] != size || r["dtype"] != "float32" || r["transport"] != wire {
				t.Errorf("%s: got %v", args, r)
			}
		}
		if got := strings.Join(ops, " "); got != "coordinator separate whole negotiation" {
			t.Errorf("%s: got rows of %q", args, got)
		}
	}
}

// The medians of the rows, 30 and 2, would make the first way fifteen times as slow as the second.
// The median of the paired ratios must not.
func TestWaysAreComparedTurnByTurn(t *testing.T) {
	samples := []sample{
		{seconds: []float64{1, 1, 30, 30, 30}},
		{seconds: []float64{2, 2, 40, 20, 2}},
		{seconds: []float64{1, 2, 15, 15, 15}},
	}
	want := "turn by turn the coordinator takes 0.75 of separate and 2.00 of whole (medians of 5)"
	if got := pairedRatios(samples); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/transport/wires"
)

// A page collects the output of several ranks.
type page struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func TestEveryWireAndNumberOfWorkersLearnsTheSame(t *testing.T) {
	var first string
	for _, tc := range []struct {
		wire string
		n    int
	}{{"memory", 2}, {"memory", 4}, {"memory", 7}, {"tcp", 4}, {"grpc", 3}} {
		var out page
		err := comm.Local(tc.n, func(ctx context.Context, c *comm.Comm) error {
			return run(ctx, c, comm.Mean, &out)
		}, comm.WithTransport(wires.All()...), comm.WithTransportName(tc.wire))
		if err != nil {
			t.Fatalf("%s, %d ranks: %v", tc.wire, tc.n, err)
		}
		losses, proof, _ := strings.Cut(out.b.String(), fmt.Sprintf("\n%d workers and a server", tc.n-1))
		if first == "" {
			first = losses
		}
		if losses != first || !strings.Contains(proof, "learnt what one process learns") {
			t.Errorf("%s, %d ranks: got %q and %q, want %q and a proof", tc.wire, tc.n, losses, proof, first)
		}
	}
}

func TestAWrongAverageFailsTheVerification(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		return run(ctx, c, comm.Max, io.Discard)
	})
	if err == nil || !strings.Contains(err.Error(), "distance to one process: got") {
		t.Errorf("got %v, want the proof to fail", err)
	}
}

func TestSharesMakeUpTheBatch(t *testing.T) {
	for n := 1; n <= batch+1; n++ {
		total := 0
		for worker := range n {
			total += len(share(batchOf(0), worker, n))
		}
		if total != batch {
			t.Errorf("%d workers: got %d examples, want %d", n, total, batch)
		}
	}
}

func TestOneRankAloneGetsAnErrorThatNamesTheRemedy(t *testing.T) {
	err := job(t.Context(), []string{"-local", "1"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "-np 2") {
		t.Errorf("got %v, want to be told how to start two", err)
	}
}

package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/transport/wires"
)

func TestTwoRanksExchangeAndOthersReturn(t *testing.T) {
	for _, wire := range []string{"memory", "tcp", "grpc"} {
		for _, n := range []int{2, 3} {
			var out bytes.Buffer // the output of rank 0
			err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
				if c.Rank() == 0 {
					return run(ctx, c, &out)
				}
				return run(ctx, c, io.Discard)
			}, comm.WithTransport(wires.All()...), comm.WithTransportName(wire))
			if err != nil {
				t.Errorf("%s, %d ranks: %v", wire, n, err)
			}
			if got := strings.Count(out.String(), "there and back"); got != 4 {
				t.Errorf("%s, %d ranks: got %d sizes, want 4:\n%s", wire, n, got, &out)
			}
		}
	}
}

func TestOneRankAloneGetsAnErrorThatNamesTheRemedy(t *testing.T) {
	err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error { return run(ctx, c, io.Discard) })
	if err == nil || !strings.Contains(err.Error(), "-np 2") {
		t.Errorf("got %v, want to be told how to start two", err)
	}
}

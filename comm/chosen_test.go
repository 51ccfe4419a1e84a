package comm_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/comm"
)

func TestCommTellsWhatWasChosen(t *testing.T) {
	for _, tc := range []struct {
		transport, algorithm, op string
		want                     string // transport to the other rank, algorithm
	}{
		{"", "allreduce:ring", "allreduce", "memory ring"},
		{"tcp", "allreduce:linear,barrier:dissemination", "allreduce", "tcp linear"},
		{"grpc", "", "barrier", "grpc dissemination"},
		{"memory", "", "allsum", "memory "},
	} {
		err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
			other := 1 - c.Rank()
			if got := c.Transport(other) + " " + c.Algorithm(tc.op, 1000); got != tc.want {
				return fmt.Errorf("got %q, want %q", got, tc.want)
			}
			if got := c.Transport(c.Rank()) + c.Transport(2) + c.Transport(-1); got != "self" {
				return fmt.Errorf("got %q for this rank and none, want self", got)
			}
			return nil
		}, comm.WithTransport(tc.transport), comm.WithAlgorithm(tc.algorithm))
		if err != nil {
			t.Errorf("%s %s: %v", tc.transport, tc.algorithm, err)
		}
	}
}

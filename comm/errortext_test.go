package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// wantError checks that err is of the given kind, that its text contains the words of has, and that
// it does not contain hasNot. It returns nil if all checks succeed.
func wantError(err error, kind fault.Kind, has, hasNot string) error {
	switch {
	case !errors.Is(err, kind):
		return fmt.Errorf("got %v, want %v", err, kind)
	case !strings.Contains(err.Error(), has), hasNot != "" && strings.Contains(err.Error(), hasNot):
		return fmt.Errorf("got %q, want %q in it, and not %q", err, has, hasNot)
	}
	return nil
}

func TestMisuseNamesTheArguments(t *testing.T) {
	errs := perRank(t, 2, func(ctx context.Context, c *comm.Comm) error {
		_, wait := comm.IAllReduce(c, []int{1}, comm.Op{}).Wait(ctx)
		_, noName := c.RecvNamed(ctx, 0, 0, "", nil)
		return errors.Join(
			wantError(comm.Broadcast(ctx, c, []int{1}, -1), fault.Misuse, "root: got -1,", ""),
			wantError(comm.Broadcast(ctx, c, []int{1}, -7), fault.Misuse, "root: got -7,", ""),
			wantError(wait, fault.Misuse, "iallreduce: ", ""),
			wantError(noName, fault.Misuse, "recvnamed: ", "  "),
			wantError(c.OnNamed(0, 0, "", nil, func(comm.Tensor, error) {}), fault.Misuse, "empty", ""),
			wantError(c.SendNamed(0, 0, "", comm.NewTensor([]int8{1}), nil), fault.Misuse, "empty", ""),
			c.Barrier(ctx), // the communicator is still usable
		)
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestAnUnknownForcedAlgorithmIsNamedWithWhereItWasGiven(t *testing.T) {
	err := comm.Local(1, func(context.Context, *comm.Comm) error { return nil }, comm.WithAlgorithm("allreduce:foo"))
	if err := wantError(err, fault.Misuse, `TUTTI_ALGORITHM or WithAlgorithm: rank 0: misuse: "allreduce:foo": algorithm for allreduce: got "foo"`, "collective."); err != nil {
		t.Error(err)
	}
}

// withoutContext makes every call that takes a context, each with a nil context.
func withoutContext(none context.Context, c *comm.Comm) error {
	buf := make([]int32, 4)
	ignore := func(_ any, err error) error { return err }
	stop, err := c.PrepareRecvNamed(0, "w", make([]byte, 8))
	errs := []error{err}
	for op, err := range map[string]error{
		"split":            ignore(c.Split(none, 0, 0)),
		"dup":              ignore(c.Dup(none)),
		"sub":              ignore(c.Sub(none, 0)),
		"close":            c.Close(none),
		"allreduce":        comm.AllReduce(none, c, buf, comm.Sum),
		"barrier":          c.Barrier(none),
		"send":             comm.Send(none, c, 0, 1, buf),
		"recv":             ignore(comm.Recv(none, c, 0, 1, buf)),
		"sendrecv":         ignore(comm.SendRecv(none, c, 0, 1, buf[:1], 0, 1, buf[1:])),
		"probe":            ignore(c.Probe(none, 0, 1)),
		"recvnamed":        ignore(c.RecvNamed(none, 1, 0, "w", nil)),
		"preparerecvnamed": stop(none),
	} {
		errs = append(errs, wantError(err, fault.Misuse, op, ""), wantError(err, fault.Misuse, "context: got nil", ""))
	}
	return errors.Join(append(errs, stop(context.Background()))...)
}

func TestNilArgumentsAreMisuse(t *testing.T) {
	var none context.Context
	run := func(context.Context, *comm.Comm) error { return nil }
	if err := wantError(comm.Local(1, run, nil), fault.Misuse, "option with index 0 of 1: got nil", ""); err != nil {
		t.Error(err)
	}
	if _, err := comm.Init(none); wantError(err, fault.Misuse, "context: got nil", "") != nil {
		t.Errorf("Init without a context: got %v", err)
	}
	if _, err := comm.Init(t.Context(), nil); wantError(err, fault.Misuse, "option with index 0 of 1: got nil", "") != nil {
		t.Errorf("Init with a nil option: got %v", err)
	}
	errs := perRank(t, 1, func(ctx context.Context, c *comm.Comm) error {
		_, _, anyNil := comm.WaitAny(ctx, nil, nil)
		r := c.IBarrier()
		_, _, noContext := comm.WaitAny(none, r)
		return errors.Join(
			wantError(comm.WaitAll(ctx, nil), fault.Misuse, "request with index 0 of 1: got nil", ""),
			wantError(comm.WaitAll(ctx, r, nil), fault.Misuse, "request with index 1 of 2: got nil", ""),
			wantError(anyNil, fault.Misuse, "request with index 0 of 2: got nil", ""),
			wantError(noContext, fault.Misuse, "context: got nil", ""),
			wantError(comm.WaitAll(none, r), fault.Misuse, "context: got nil", ""),
			withoutContext(none, c),
			comm.WaitAll(ctx, r),
		)
	})
	if errs[0] != nil {
		t.Error(errs[0])
	}
}

func TestAMessageOfAnotherTypeNamesBothTypesAndTheReceive(t *testing.T) {
	errs := perRank(t, 2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			return comm.Send(ctx, c, 0, 5, []float32{1})
		}
		_, err := comm.Recv(ctx, c, 1, 5, make([]int32, 1))
		return errors.Join(
			wantError(err, fault.Mismatch, "rank 1 with tag 5: got float32", ""),
			wantError(err, fault.Mismatch, ", int32", ""),
			wantError(err, fault.Mismatch, "errortext_test.go:", "errortext_test.go:0"),
		)
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

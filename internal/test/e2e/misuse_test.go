//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// misuse makes calls with wrong arguments, and calls that are cancelled. All of them must fail.
// After each call misuse checks that the communicators still work.
func misuse(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	sister, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func(ctx context.Context, a *rankProcess, c *comm.Comm) error
	}{
		{"arguments that cannot be", badArguments},
		{"a buffer that is too small", smallBuffer},
		{"a receive that is cancelled", cancelledRecv},
		{"a large send that is cancelled", cancelledSend},
	} {
		if err := step.do(ctx, a, c); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		for _, comms := range []*comm.Comm{c, sister} {
			if err := checkCommunicator(ctx, comms); err != nil {
				return fmt.Errorf("after %s: %w", step.name, err)
			}
		}
	}
	return afterClose(ctx, c, sister)
}

// checkCommunicator passes a message from rank to rank and computes a sum over a communicator.
func checkCommunicator(ctx context.Context, c *comm.Comm) error {
	n, r := c.Size(), c.Rank()
	in := make([]int32, 1)
	if _, err := comm.SendRecv(ctx, c, (r+1)%n, 9, []int32{int32(r)}, (r+n-1)%n, 9, in); err != nil {
		return err
	}
	if err := comm.AllReduce(ctx, c, in, comm.Sum); err != nil {
		return err
	}
	if want := int32(n * (n - 1) / 2); in[0] != want {
		return fmt.Errorf("the ranks' sum is %d, want %d", in[0], want)
	}
	return nil
}

// wantError checks an error's kind, and that its text contains a word.
func wantError(err error, k fault.Kind, word string) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != k || !strings.Contains(err.Error(), word) {
		return fmt.Errorf("got %v, want a %q with %q in it", err, k, word)
	}
	return nil
}

func badArguments(ctx context.Context, _ *rankProcess, c *comm.Comm) error {
	one := []int32{1}
	_, from := comm.Recv(ctx, c, c.Size(), 0, one)
	_, early := c.Probe(ctx, -7, 0)
	_, split := c.Split(ctx, -2, 0)
	_, sub := c.Sub(ctx, c.Rank(), c.Size())
	_, isend := comm.ISend(c, -1, 0, one).Wait(ctx)
	_, iall := comm.IAllReduce(c, one, comm.Op{}).Wait(ctx)
	return errors.Join(
		wantError(comm.Send(ctx, c, c.Size(), 0, one), fault.Misuse, "rank 3 is out of range"),
		wantError(comm.Send(ctx, c, 0, -1, one), fault.Misuse, "tag -1"),
		wantError(from, fault.Misuse, "rank 3 is out of range"),
		wantError(early, fault.Misuse, "rank -7 is out of range"),
		wantError(isend, fault.Misuse, "rank -1 is out of range"),
		wantError(comm.Broadcast(ctx, c, one, 3), fault.Misuse, "root: got 3, want 0 to 2"),
		wantError(comm.AllReduce(ctx, c, one, comm.Op{}), fault.Misuse, "operator"),
		wantError(iall, fault.Misuse, "operator"),
		wantError(comm.AllReduce(ctx, c, one, comm.Mean), fault.Misuse, "mean"),
		wantError(comm.AllGather(ctx, c, one, comm.From(one)), fault.Misuse, "want a multiple of 3"),
		wantError(split, fault.Misuse, "color: got -2"),
		wantError(sub, fault.Misuse, "ranks: got 3 in"),
	)
}

// smallBuffer receives messages that do not fit. These receives must fail, and the messages after
// them must still arrive.
func smallBuffer(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	for _, bytes := range []int{100, 1 << 20} {
		switch a.rank {
		case 0:
			if err := comm.Send(ctx, c, 1, 1, make([]byte, bytes)); err != nil {
				return err
			}
			if err := comm.Send(ctx, c, 1, 1, []byte{7}); err != nil {
				return err
			}
		case 1:
			got := make([]byte, 3)
			_, err := comm.Recv(ctx, c, 0, 1, got)
			if err := wantError(err, fault.Misuse, fmt.Sprintf("%d bytes from rank 0 with tag 1 does not fit the receive's 3 bytes", bytes)); err != nil {
				return err
			}
			if _, err := comm.Recv(ctx, c, 0, 1, got); err != nil || got[0] != 7 {
				return fmt.Errorf("the next message: %v, %w", got, err)
			}
		}
	}
	return nil
}

// cancelledRecv cancels a receive before its message arrives. Other receives must go on, and a
// later receive must get the message.
func cancelledRecv(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	const tags = 3
	if a.rank == 1 {
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		for tag := range tags {
			if err := comm.Send(ctx, c, 0, tag, []int32{int32(tag)}); err != nil {
				return err
			}
		}
		return nil
	}
	if a.rank != 0 {
		return c.Barrier(ctx)
	}
	got := make([][]int32, tags)
	var siblings []*comm.Request
	for tag := range tags {
		got[tag] = make([]int32, 1)
		if tag != 1 {
			siblings = append(siblings, comm.IRecv(c, 1, tag, got[tag]))
		}
	}
	short, cancel := context.WithCancel(ctx)
	left := make(chan error, 1)
	go func() {
		_, err := comm.Recv(short, c, 1, 1, make([]int32, 1))
		left <- err
	}()
	cancel()
	if err := wantError(<-left, fault.Canceled, "recv"); err != nil {
		return err
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	if err := comm.WaitAll(ctx, siblings...); err != nil {
		return err
	}
	if _, err := comm.Recv(ctx, c, 1, 1, got[1]); err != nil {
		return err
	}
	for tag := range tags {
		if got[tag][0] != int32(tag) {
			return fmt.Errorf("tag %d brought %d", tag, got[tag][0])
		}
	}
	return nil
}

// cancelledSend cancels a send that has not been received. The receiver must not see the message.
func cancelledSend(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	switch a.rank {
	case 0:
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if err := wantError(comm.Send(short, c, 1, 4, make([]byte, 8<<20)), fault.Timeout, "rank 1"); err != nil {
			return err
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		return comm.Send(ctx, c, 1, 4, []byte{4})
	case 1:
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		got := make([]byte, 8<<20)
		st, err := comm.Recv(ctx, c, 0, 4, got)
		if err == nil && (st.Bytes != 1 || got[0] != 4) {
			err = fmt.Errorf("got %+v", st)
		}
		return err
	}
	return c.Barrier(ctx)
}

// afterClose closes sister, and then c. Calls on a closed communicator must return fault.Closed,
// except a second Close, which is no error. c must work until it is closed.
func afterClose(ctx context.Context, c, sister *comm.Comm) error {
	if err := sister.Close(ctx); err != nil {
		return err
	}
	if err := wantError(sister.Barrier(ctx), fault.Closed, "closed"); err != nil {
		return err
	}
	if err := wantError(comm.Send(ctx, sister, 0, 0, []byte{1}), fault.Closed, "closed"); err != nil {
		return err
	}
	if err := checkCommunicator(ctx, c); err != nil {
		return err
	}
	if err := c.Close(ctx); err != nil {
		return err
	}
	_, recv := comm.Recv(ctx, c, 0, 0, make([]byte, 1))
	_, dup := c.Dup(ctx)
	return errors.Join(
		wantError(c.Barrier(ctx), fault.Closed, "closed"),
		wantError(comm.Send(ctx, c, 0, 0, []byte{1}), fault.Closed, "closed"),
		wantError(recv, fault.Closed, "closed"),
		wantError(dup, fault.Closed, "closed"),
		c.Close(ctx),
	)
}

func TestCommunicatorIsUsableAfterMisuse(t *testing.T) {
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			run(t, 3, wire, instruction{Program: "misuse", SendBuffer: 1 << 20}).wantExit(0)
		})
	}
}

// sendInACycle sends more to the next rank than the buffers hold. All ranks do so and none
// receives, so every Send waits until gate 1 opens, which ends its context like a deadline. After
// gate 0 the communicator must still work.
func sendInACycle(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	limited := a.contextUntilGate(ctx, 1, 0)
	at, err := callHere(), comm.Send(limited, c, (a.rank+1)%c.Size(), 6, make([]byte, a.Bytes))
	a.report("sent", at, err)
	a.awaitGate(0)
	return checkCommunicator(ctx, c)
}

func TestACycleOfSendsIsNamedWithAllItsCalls(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			const ranks = 3
			o := instruction{Program: "cycle", Bytes: 8 << 20, SendBuffer: 1 << 20, Stall: 300 * time.Millisecond}
			j := run(t, ranks, wire, o)
			j.warnings(ranks, " waits in send ")
			deadline := j.now()
			j.open(1)
			sent := j.events("sent", ranks)
			for _, e := range sent {
				if e.Kind != fault.Timeout.Error() {
					t.Errorf("rank %d got %q, want a %q", e.Rank, e.Text, fault.Timeout)
				}
				j.wantWithin(e, deadline, 2*time.Second)
				cycle := cycleFrom(e.Rank, sent)
				if !strings.Contains(e.Text, cycle) || len(e.Peers) != ranks-1 {
					t.Errorf("rank %d does not say %q, and name the others: %s", e.Rank, cycle, e.Text)
				}
				if n := j.err.count(fmt.Sprintf("tutti: rank %d waits in send ", e.Rank), cycle); n != 1 {
					t.Errorf("%d lines warn of %q, want 1:\n%v", n, cycle, j.err)
				}
			}
			j.open(0)
			j.wantExit(0)
		})
	}
}

// cycleFrom returns the text by which the error of a rank describes the cycle of waiting ranks.
func cycleFrom(rank int, sent []event) string {
	var path []string
	for i := range sent {
		e := sent[(rank+i)%len(sent)]
		path = append(path, fmt.Sprintf("rank %d in send uint8 x%d with rank %d tag 6 at %s", e.Rank, 8<<20, (e.Rank+1)%len(sent), e.At))
	}
	return strings.Join(path, ", waits for ")
}

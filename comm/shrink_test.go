package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// jobRanks returns the job's ranks of the members of c.
func jobRanks(c *Comm) (ranks []int) {
	for r := range c.Size() {
		ranks = append(ranks, c.WorldRank(r))
	}
	return ranks
}

func TestShrinkReturnsTheRanksThatHaveNotClosed(t *testing.T) {
	for _, wire := range []string{"memory", "shm", "tcp"} {
		t.Run(wire, func(t *testing.T) {
			err := Local(4, func(ctx context.Context, c *Comm) error {
				if c.Rank() == 1 {
					return nil // the rank closes
				}
				small, err := c.Shrink(ctx)
				if err != nil {
					return err
				}
				if got := jobRanks(small); !slices.Equal(got, []int{0, 2, 3}) {
					return fmt.Errorf("members: got %v, want 0, 2 and 3", got)
				}
				sum := []int{c.Rank()}
				if err := AllReduce(ctx, small, sum, Sum); err != nil {
					return err
				}
				if sum[0] != 5 {
					return fmt.Errorf("sum: got %d, want 5", sum[0])
				}
				return nil
			}, WithTransportName(wire), WithTimeout(20*time.Second))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAgreeReturnsTheAndOnAllRanks(t *testing.T) {
	err := Local(3, func(ctx context.Context, c *Comm) error {
		for i, want := range []uint64{0b1000, 0b1001} {
			bits := []uint64{0b1011, 0b1101, 0b1000 | uint64(i)}[c.Rank()]
			got, err := c.Agree(ctx, bits)
			if err != nil || got != want {
				return fmt.Errorf("agreement %d: got %b, %v, want %b", i, got, err, want)
			}
		}
		return nil
	}, WithTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
}

func TestRevokeEndsEveryCallOfEveryMember(t *testing.T) {
	var begun sync.WaitGroup
	begun.Add(2)
	err := Local(3, func(ctx context.Context, c *Comm) error {
		var err error
		switch c.Rank() {
		case 0: // no rank sends this message
			r := IRecv(c, 1, 7, make([]int, 1))
			begun.Done()
			_, err = r.Wait(ctx)
		case 1:
			r := c.IBarrier()
			begun.Done()
			_, err = r.Wait(ctx)
		case 2:
			begun.Wait()
			c.Revoke()
			err = c.Barrier(ctx)
		}
		if !errors.Is(err, fault.Revoked) {
			return fmt.Errorf("got %v, want Revoked", err)
		}
		if got, err := c.Agree(ctx, 6); got != 6 || err != nil {
			return fmt.Errorf("agree on the revoked communicator: got %d, %v, want 6", got, err)
		}
		return nil
	}, WithTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
}

// Rank 1 has closed a Dup before it could learn of any agreement of the other ranks. Agree and
// Shrink on the other ranks must succeed without rank 1, before their Timeout.
func TestAgreeAndShrinkDoNotWaitForARankThatHasClosedTheCommunicator(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *Comm) error{
		"agree": func(ctx context.Context, c *Comm) error {
			_, err := c.Agree(ctx, 1)
			return err
		},
		"shrink": func(ctx context.Context, c *Comm) error {
			small, err := c.Shrink(ctx)
			if err != nil {
				return err
			}
			if got := jobRanks(small); !slices.Equal(got, []int{0, 2}) {
				return fmt.Errorf("members: got %v, want 0 and 2", got)
			}
			return small.Barrier(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := Local(3, func(ctx context.Context, c *Comm) error {
				dup, err := c.Dup(ctx)
				if err != nil {
					return err
				}
				if c.Rank() == 1 {
					if err := dup.Close(ctx); err != nil {
						return err
					}
				}
				if err := c.Barrier(ctx); err != nil {
					return err
				}
				if c.Rank() != 1 {
					err = call(ctx, dup)
				}
				return errors.Join(err, c.Barrier(ctx))
			}, WithTimeout(5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A revoke whose error is too large for a flood must arrive, without its cause.
func TestTheRevokeAfterNoQuorumFitsIntoAFlood(t *testing.T) {
	const id = 12345
	big := &fault.Error{Kind: fault.NoQuorum, Op: "agreement", Err: errors.New(strings.Repeat("cause ", 1000))}
	for r := range 64 {
		text := strings.Repeat("x", 200)
		big.Peers = append(big.Peers, fault.Peer{Rank: r, Host: text, Call: text, At: text})
	}
	if got := 8 + len(big.AppendWire(nil)); got <= maxFlood {
		t.Fatalf("the error has %d bytes, want more than %d", got, maxFlood)
	}
	err := Local(2, func(ctx context.Context, c *Comm) error {
		defer c.Barrier(ctx)
		if c.Rank() == 0 {
			c.rt.floodRevoke(id, big)
			return nil
		}
		// Reason: an early revoke has no event. The loop ends with the revoke.
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			c.rt.mu.Lock()
			e := c.rt.earlyRevokes.why[id]
			c.rt.mu.Unlock()
			if e != nil {
				return nil
			}
		}
		return errors.New("the revoke has not arrived")
	})
	if err != nil {
		t.Error(err)
	}
}

// A Shrink that can never finish must close the communicator that it had begun to set up.
func TestAFailedShrinkClosesItsCommunicator(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		made, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		dup, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		s := c.rt.survivorsOf(dup.id)
		s.made, s.isReady = made, true
		s.mu.Lock()
		s.fail(fault.New(fault.NoQuorum, "agreement", c.Rank(), "no quorum"))
		s.mu.Unlock()
		if _, err := dup.Shrink(ctx); !errors.Is(err, fault.NoQuorum) {
			return fmt.Errorf("got %v, want %v", err, fault.NoQuorum)
		}
		if s.made != nil || s.isReady || c.rt.comm(made.id) != nil {
			return errors.New("the communicator is open")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

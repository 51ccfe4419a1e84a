package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Rank 0 fills the credit and its send buffer with messages that rank 1 does not receive. Then both
// ranks exchange other messages and collectives, which must not block.
func TestUnreceivedMessagesDoNotBlockOthers(t *testing.T) {
	const size = 1000
	then := map[string]func(ctx context.Context, c *comm.Comm) error{
		"another tag": func(ctx context.Context, c *comm.Comm) error {
			word := []int32{7}
			if c.Rank() == 0 {
				return comm.Send(ctx, c, 1, 1, word)
			}
			_, err := comm.Recv(ctx, c, 0, 1, word)
			return err
		},
		"a collective": func(ctx context.Context, c *comm.Comm) error {
			return comm.AllReduce(ctx, c, make([]float32, 100_000), comm.Sum)
		},
	}
	for name, f := range then {
		for _, wire := range []string{"memory", "tcp"} {
			t.Run(name+"/"+wire, func(t *testing.T) {
				err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
					limited, cancel := context.WithTimeout(ctx, 20*time.Second)
					defer cancel()
					sent := 0
					if c.Rank() == 0 {
						var err error
						if sent, err = sendWhileItReturns(ctx, c, size); err != nil {
							return err
						}
					}
					if err := f(limited, c); err != nil {
						return err
					}
					n := []int{sent}
					if err := comm.Broadcast(limited, c, n, 0); err != nil {
						return err
					}
					for i := range n[0] * c.Rank() {
						got := make([]byte, size)
						if _, err := comm.Recv(limited, c, 0, 0, got); err != nil {
							return err
						}
						if got[0] != byte(i) {
							return fmt.Errorf("message %d is number %d", i, got[0])
						}
					}
					return nil
				}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithParameters(comm.Parameters{Credit: 512 << 10, SendBuffer: 1 << 20, NoSharedMemory: true}))
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// sendWhileItReturns sends numbered messages until Send would wait for a receive.
func sendWhileItReturns(ctx context.Context, c *comm.Comm, size int) (n int, err error) {
	for ; ; n++ {
		b := make([]byte, size)
		b[0] = byte(n)
		limited, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		err := comm.Send(limited, c, 1, 0, b)
		cancel()
		if errors.Is(err, fault.Timeout) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func TestAReceiveFromAnySourceOutlivesTheGoodbyeOfOthers(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		switch c.Rank() {
		case 1:
			return nil // the rank closes at once
		case 2:
			return comm.Send(ctx, c, 0, 0, []int32{5})
		}
		buf := make([]int32, 1)
		if _, err := comm.Recv(ctx, c, comm.AnySource, 0, buf); err != nil {
			return err
		}
		_, err := comm.Recv(ctx, c, comm.AnySource, 0, buf)
		if !errors.Is(err, fault.Closed) {
			return fmt.Errorf("with nobody left: got %v, want closed", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Each rank closes while the next rank has not received its messages. The Closes must not wait for
// each other, and must report that the next rank has closed.
func TestCloseDoesNotWaitForUnreceivedMessages(t *testing.T) {
	for _, wire := range transports {
		for _, n := range []int{2, 3} {
			closeErrs := make([]error, n)
			err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
				next := (c.Rank() + 1) % n
				for _, size := range []int{10, 1 << 20} {
					if err := comm.Send(ctx, c, next, 0, make([]byte, size)); err != nil {
						return err
					}
				}
				named := make(chan error, 1)
				if err := c.SendNamed(1, next, "w", comm.NewTensor(make([]byte, 1<<20)), func(err error) { named <- err }); err != nil {
					return err
				}
				if err := c.Barrier(ctx); err != nil {
					return err
				}
				limited, cancel := context.WithTimeout(ctx, 20*time.Second)
				defer cancel()
				closeErrs[c.Rank()] = c.Close(limited)
				if err := <-named; !errors.Is(err, fault.Closed) {
					return fmt.Errorf("rank %d: the tensor: got %v, want closed", c.Rank(), err)
				}
				return nil
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
			if err != nil {
				t.Fatalf("%s, %d ranks: %v", wire, n, err)
			}
			for r, err := range closeErrs {
				var f *fault.Error
				if !errors.As(err, &f) || f.Kind != fault.Closed || len(f.Peers) != 1 || f.Peers[0].Rank != (r+1)%n {
					t.Errorf("%s, %d ranks: Close on rank %d: got %v, want closed by rank %d", wire, n, r, err, (r+1)%n)
				}
			}
		}
	}
}

// EndStep must end the send of a tensor whose communicator is closed on the sender, and Close must
// not wait for that send.
func TestEndStepEndsSendsOfAClosedCommunicator(t *testing.T) {
	closed := make(chan struct{})
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			defer close(closed)
		}
		dup, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			if err := c.Barrier(ctx); err != nil {
				return err
			}
			dup.EndStep(1, nil)
			<-closed // a receiver that closes would end the send, too
			return nil
		}
		sent := make(chan error, 1)
		if err := dup.SendNamed(1, 1, "w", comm.NewTensor(make([]byte, 100_000)), func(err error) { sent <- err }); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if err := dup.Close(limited); err != nil {
			return err
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		select {
		case err := <-sent:
			if !errors.Is(err, fault.Closed) {
				return fmt.Errorf("the tensor: got %v, want closed", err)
			}
		case <-limited.Done():
			return errors.New("the send goes on although its step has ended")
		}
		return c.Close(limited)
	})
	if err != nil {
		t.Error(err)
	}
}

// Every rank sends more than the buffers hold before it receives, so the program deadlocks. Each
// rank must get an error that names the cycle of waiting ranks.
func TestACycleOfSendsEndsWithTheTimeoutOnEachRank(t *testing.T) {
	for _, size := range []int{1000, 100_000} { // an eager message, and a larger one
		const n = 3
		// sending keeps a rank that has given up from closing before the other ranks have given up.
		var sending sync.WaitGroup
		sending.Add(n)
		err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
			defer sending.Wait()
			defer sending.Done()
			next := (c.Rank() + 1) % n
			for {
				err := comm.Send(ctx, c, next, 0, make([]byte, size))
				if err == nil {
					continue
				}
				var f *fault.Error
				if !errors.As(err, &f) || f.Kind != fault.Timeout || len(f.Peers) == 0 || f.Peers[0].Rank != next || !strings.Contains(err.Error(), "the ranks wait in a cycle") {
					return fmt.Errorf("messages of %d bytes: got %v, want a timeout that names rank %d and the cycle", size, err, next)
				}
				return nil
			}
		}, comm.WithTimeout(time.Second), comm.WithParameters(comm.Parameters{Credit: 512 << 10, SendBuffer: 1 << 20, NoSharedMemory: true}))
		// Close reports that accepted messages were not received.
		if err != nil && !errors.Is(err, fault.Closed) {
			t.Error(err)
		}
	}
}

package comm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Rank 0 fills the credit and its spill buffer with messages that rank 1 does not
// receive; then both want something else of each other.
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
			return nil // closes at once
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

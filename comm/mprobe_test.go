package comm_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Several goroutines probe and receive concurrently. Each must receive the whole message that it
// has probed. The messages are small and large, and some come from this rank itself.
func TestMatchedProbesShareMessagesAmongGoroutines(t *testing.T) {
	for _, wire := range transports {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
				const each = 40
				sizes := []int{1, 0, 100, 20_000, 3, 100_000}
				var sends []*comm.Request
				for i := range each {
					buf := make([]float32, sizes[i%len(sizes)])
					for k := range buf {
						buf[k] = float32(c.Rank()*each + i)
					}
					sends = append(sends, comm.ISend(c, 0, i, buf))
				}
				if c.Rank() > 0 {
					return comm.WaitAll(ctx, sends...)
				}
				var receivers sync.WaitGroup
				errs := make([]error, 4)
				seen := make([]map[int]bool, 4)
				for g := range errs {
					seen[g] = make(map[int]bool)
					receivers.Go(func() {
						for range 3 * each / len(errs) {
							if errs[g] = receiveProbed(ctx, c, each, seen[g]); errs[g] != nil {
								return
							}
						}
					})
				}
				receivers.Wait()
				all := make(map[int]bool)
				for _, s := range seen {
					for message := range s {
						all[message] = true
					}
				}
				if len(all) != 3*each {
					errs = append(errs, fmt.Errorf("got %d messages, want %d", len(all), 3*each))
				}
				return errors.Join(append(errs, comm.WaitAll(ctx, sends...))...)
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// receiveProbed receives one message, whose size it knows from the probe, and records it in seen.
func receiveProbed(ctx context.Context, c *comm.Comm, each int, seen map[int]bool) error {
	st, recv, err := comm.MProbe[float32](ctx, c, comm.AnySource, comm.AnyTag)
	if err != nil {
		return err
	}
	buf := make([]float32, comm.Count[float32](st))
	if err := recv(ctx, buf); err != nil {
		return err
	}
	want := st.Source*each + st.Tag
	for k, x := range buf {
		if x != float32(want) {
			return fmt.Errorf("element %d of the message from rank %d with tag %d is %v, want %d", k, st.Source, st.Tag, x, want)
		}
	}
	seen[want] = true
	return nil
}

// No other call may match a reserved message. Later messages with the same sender and tag must not
// wait for it.
func TestAReservedMessageIsNotFoundByOtherCalls(t *testing.T) {
	leak.Check(t)
	// The sizes are in elements. A message of the first size is sent at once. A message of the
	// second size is offered.
	for _, size := range []int{1, 100_000} {
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			first, second := make([]int32, size), make([]int32, size)
			first[0], second[0] = 1, 2
			if c.Rank() == 1 {
				a, b := comm.ISend(c, 0, 7, first), comm.ISend(c, 0, 7, second)
				return errors.Join(comm.WaitAll(ctx, a, b), c.Barrier(ctx))
			}
			st, recv, err := comm.MProbe[int32](ctx, c, 1, 7)
			if err != nil || st != (comm.Status{Source: 1, Tag: 7, Bytes: 4 * size}) {
				return fmt.Errorf("got %+v and %v", st, err)
			}
			other := make([]int32, size)
			if _, err := comm.Recv(ctx, c, comm.AnySource, comm.AnyTag, other); err != nil || other[0] != 2 {
				return fmt.Errorf("beside the reserved message: got %d and %v, want the second", other[0], err)
			}
			if _, found, err := c.IProbe(comm.AnySource, comm.AnyTag); found || err != nil {
				return fmt.Errorf("IProbe beside the reserved message: got %v and %v, want nothing", found, err)
			}
			if _, again, err := comm.IMProbe[int32](c, 1, 7); again != nil || err != nil {
				return fmt.Errorf("IMProbe beside the reserved message: got one and %v, want nothing", err)
			}
			if err := recv(ctx, other); err != nil || other[0] != 1 {
				return fmt.Errorf("the reserved message: got %d and %v, want the first", other[0], err)
			}
			if err := recv(ctx, other); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("received twice: got %v, want %v", err, fault.Misuse)
			}
			return c.Barrier(ctx)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A reservation must end if the sender withdraws the message. It must not keep a job from closing.
// A receive with wrong arguments consumes the reserved message.
func TestReservedMessagesEndWithTheirSenderAndTheirCommunicator(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		large := make([]int32, 100_000)
		if c.Rank() == 1 {
			limited, cancel := context.WithCancel(ctx)
			defer cancel()
			sent := make(chan error, 1)
			go func() { sent <- comm.Send(limited, c, 0, 1, large) }()
			if err := errors.Join(c.Barrier(ctx), comm.Send(ctx, c, 0, 2, large[:1]), comm.Send(ctx, c, 0, 2, large[:1]), comm.Send(ctx, c, 0, 3, large[:1])); err != nil {
				return err
			}
			cancel()
			if err := <-sent; !errors.Is(err, fault.Canceled) {
				return fmt.Errorf("the send that was cancelled: got %v, want %v", err, fault.Canceled)
			}
			return c.Barrier(ctx)
		}
		_, gone, err := comm.MProbe[int32](ctx, c, 1, 1)
		if err := errors.Join(err, c.Barrier(ctx)); err != nil {
			return err
		}
		_, short, e1 := comm.MProbe[int32](ctx, c, 1, 2)
		_, other, e2 := comm.MProbe[float32](ctx, c, 1, 2)
		_, _, e3 := comm.MProbe[int32](ctx, c, 1, 3) // never received
		if err := errors.Join(e1, e2, e3, c.Barrier(ctx)); err != nil {
			return err
		}
		for _, x := range []struct {
			name string
			err  error
			want fault.Kind
		}{
			{"withdrawn", gone(ctx, large), fault.Canceled},
			{"too small a buffer", short(ctx, nil), fault.Misuse},
			{"another type", other(ctx, make([]float32, 1)), fault.Mismatch},
		} {
			if !errors.Is(x.err, x.want) {
				return fmt.Errorf("%s: got %v, want %v", x.name, x.err, x.want)
			}
		}
		return nil
	}, comm.WithParameters(comm.Parameters{SendBuffer: 1}))
	// Rank 0 closes without receiving the last message. Rank 1 gets fault.Closed for that message,
	// unless rank 1 has closed before.
	if err != nil && !errors.Is(err, fault.Closed) {
		t.Error(err)
	}
}

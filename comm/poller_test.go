package comm_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/tensor"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// callbackRan is the condition that a callback has run.
type callbackRan struct{ atomic.Bool }

// Met implements bridge.PollCondition.
func (c *callbackRan) Met() bool { return c.Load() }

// A poller that gives up must enable the transport's wake-ups again, so that no arrival between two
// polls is lost. It must notice at once what has already arrived.
func TestPollerRunsNamedReceiveCallbacks(t *testing.T) {
	wires := []string{"memory", "tcp"}
	if runtime.GOOS == "linux" {
		wires = append(wires, "shm")
	}
	for _, wire := range wires {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
				other := 1 - c.Rank()
				look := c.Bridge().NewPoller(other)
				for turn := range uint64(50) {
					var ev callbackRan
					received := make(chan error, 1)
					err := c.OnNamed(0, other, "ball", nil, func(t comm.Tensor, err error) {
						if err == nil && (len(t.Data) != 1 || t.Data[0] != byte(turn)) {
							err = errors.New("another ball")
						}
						ev.Store(true)
						received <- err
					})
					if err != nil {
						return err
					}
					ball := comm.Tensor{DType: tensor.Uint8, Shape: []int{1}, Data: []byte{byte(turn)}}
					if err := c.SendNamed(0, other, "ball", ball, nil); err != nil {
						return err
					}
					look.Poll(ctx, &ev)
					// The callback must run even if Poll returned without success.
					if err := <-received; err != nil {
						return err
					}
					if !look.Poll(ctx, &ev) {
						return errors.New("an event that has happened is not seen")
					}
				}
				return nil
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			if err != nil {
				t.Error(err)
			}
		})
	}
}

package comm_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

func TestDeviceCarriesTheCoordinator(t *testing.T) {
	needsDevice(t)
	leak.Check(t)
	if err := comm.Local(3, coordinated, onDevice()...); err != nil {
		t.Error(err)
	}
}

func TestSoftwareDeviceCarriesTheCoordinator(t *testing.T) {
	leak.Check(t)
	fabric := softdevice.NewFabric()
	if err := comm.Local(3, coordinated, overFabric(fabric)...); err != nil {
		t.Error(err)
	}
	if pairs, regions := fabric.Held(); pairs+regions > 0 {
		t.Errorf("%d queue pairs and %d regions are left", pairs, regions)
	}
}

// coordinated reduces tensors by a coordinator. Each rank submits them in a different order. Some
// tensors travel in one eager message, some through the eager-RDMA ring, and some on request.
func coordinated(ctx context.Context, c *comm.Comm) error {
	co, err := coordinator.Start(ctx, c)
	if err != nil {
		return err
	}
	sizes := []int{1, 0, 1000, 70_000, 5, 300_000, 17}
	order := rand.New(rand.NewPCG(1, uint64(c.Rank())))
	for step := range 4 {
		bufs, hs := make([][]float32, len(sizes)), make([]*coordinator.Handle, len(sizes))
		for _, i := range order.Perm(len(sizes)) {
			bufs[i] = slices.Repeat([]float32{float32(c.Rank() + step + i)}, sizes[i])
			hs[i] = coordinator.AllReduce(co, fmt.Sprint("w", i), bufs[i], comm.Sum)
		}
		if err := coordinator.WaitAll(ctx, hs...); err != nil {
			return err
		}
		for i, buf := range bufs {
			want := float32(0 + 1 + 2 + 3*(step+i))
			if at := slices.IndexFunc(buf, func(x float32) bool { return x != want }); at >= 0 {
				return errors.Join(fmt.Errorf("step %d: element %d of w%d is %v, want %v", step, at, i, buf[at], want), co.Close(ctx))
			}
		}
	}
	return co.Close(ctx)
}

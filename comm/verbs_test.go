package comm_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// testCounts returns the vector lengths with which every collective is tested on n ranks. Under the
// race detector, which takes ten times as long, a few lengths are enough.
func testCounts(n int) []int {
	if raceEnabled {
		return []int{0, n + 1, 70_001}
	}
	return []int{0, 1, n - 1, n, n + 1, 1000, 100_003}
}

// testRanks returns the numbers of ranks with which every collective is tested.
func testRanks() []int {
	if raceEnabled {
		return []int{1, 2, 3, 5}
	}
	return []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
}

// transports are the transports over which every collective is tested.
var transports = wires()

func wires() []string {
	if runtime.GOOS == "linux" {
		return []string{"memory", "tcp", "grpc", "shm"}
	}
	return []string{"memory", "tcp", "grpc"}
}

// Every collective must be right over every transport, for each number of ranks and each length.
// The test also covers messages between ranks that could share memory.
func TestEveryCollectiveOverEveryTransportRankCountAndLength(t *testing.T) {
	for _, wire := range transports {
		for _, n := range testRanks() {
			t.Run(fmt.Sprintf("%s/%d ranks", wire, n), func(t *testing.T) {
				callAll(t, n, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
				if wire == "memory" || wire == "shm" && n <= 4 {
					callAll(t, n, comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
				}
			})
		}
	}
}

// The test runs over RDMA with software devices. The transport memory sets up the connections.
func TestEveryCollectiveOverRDMA(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			callAll(t, n, overSoftware()...)
		})
	}
}

// callAll makes every collective on n ranks, also as a persistent request, with vectors of every
// length in testCounts.
func callAll(t *testing.T, n int, opts ...comm.Option) {
	calls := append(worldtest.Collectives[float32](), worldtest.Collectives[int32]()...)
	calls = append(calls, worldtest.Persistent[float32]()...)
	err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
		for _, count := range testCounts(n) {
			for _, call := range calls {
				if err := call.Run(ctx, c, count, new(worldtest.BufferTracker)); err != nil {
					return fmt.Errorf("%s of %d elements: %w", call.Name, count, err)
				}
			}
		}
		return nil
	}, opts...)
	if err != nil {
		t.Error(err)
	}
}

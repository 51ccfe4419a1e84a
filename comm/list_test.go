package comm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/tensor"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// listSizes are the lengths of the vectors of several lists. Some vectors share a segment with
// other vectors, and some take several segments.
var listSizes = [][]int{
	{},
	{0},
	{1},
	{0, 3, 0, 1, 700},
	{5, 64, 65, 1, 2, 3, 127},
	{1000, 20_000, 3, 0, 5000, 70_001, 16_384},
	{150_000, 1, 60_000},
}

// randomFloats returns floats whose sum depends on the order of the additions.
func randomFloats(n, rank, index int) []float32 {
	rnd := rand.New(rand.NewPCG(uint64(rank), uint64(index)))
	v := make([]float32, n)
	for i := range v {
		bits := rnd.Uint32() // a random sign and fraction, and an exponent from -27 to 4
		v[i] = math.Float32frombits(bits&0x807f_ffff | (100+bits>>23&31)<<23)
	}
	return v
}

func TestAListIsReducedToTheBitsOfEachVectorAlone(t *testing.T) {
	type setting struct {
		wire, algorithm string
		opts            []comm.Option
	}
	settings := []setting{
		{"memory", "ring", nil}, {"memory", "shared", nil}, {"tcp", "ring", nil}, {"grpc", "ring", nil},
		{"tcp", "ring", []comm.Option{comm.WithParameters(comm.Parameters{Segment: 4096})}}, {"memory", "ring", []comm.Option{comm.WithParameters(comm.Parameters{Segment: 96})}},
		{"tcp", "ring", []comm.Option{comm.WithParameters(comm.Parameters{Checksums: true})}},
	}
	if runtime.GOOS == "linux" {
		settings = append(settings, setting{"shm", "ring", nil}, setting{"shm", "shared", nil})
	}
	ranks := []int{1, 2, 3, 5}
	if raceEnabled {
		ranks = []int{2, 3} // larger teams would find no further races
	}
	for _, s := range settings {
		for _, n := range ranks {
			if n == 1 && s.algorithm == "shared" {
				continue // a single rank shares no memory
			}
			t.Run(fmt.Sprintf("%s/%s/%d/%d", s.wire, s.algorithm, n, len(s.opts)), func(t *testing.T) {
				leak.Check(t)
				err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
					for i, sizes := range listSizes {
						for _, op := range []comm.Op{comm.Sum, comm.Mean} {
							if err := sameAsAlone(ctx, c, s.algorithm, sizes, op); err != nil {
								return fmt.Errorf("list %d, %s: %w", i, op.Name(), err)
							}
						}
					}
					return nil
				}, append(s.opts, comm.WithTransport(linked.All()...), comm.WithTransportName(s.wire))...)
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// sameAsAlone compares the results of a list with the results of reducing each vector separately.
func sameAsAlone(ctx context.Context, c *comm.Comm, algorithm string, sizes []int, op comm.Op) error {
	var list [][]byte
	var wants [][]float32
	for index, n := range sizes {
		want := randomFloats(n, c.Rank(), index)
		list = append(list, tensor.Bytes(slices.Clone(want)))
		if err := comm.AllReduce(ctx, c, want, op, comm.Algorithm(algorithm)); err != nil {
			return err
		}
		wants = append(wants, want)
	}
	if err := c.Bridge().AllReduceList(ctx, algorithm, tensor.Float32, list, op); err != nil {
		return err
	}
	for index, want := range wants {
		if !bytes.Equal(list[index], tensor.Bytes(want)) {
			return fmt.Errorf("rank %d: vector %d, of %d elements, has other bits than alone", c.Rank(), index, len(want))
		}
	}
	return nil
}

func TestInvalidListsAreMisuse(t *testing.T) {
	whole := make([]float32, 4)
	b := tensor.Bytes(whole)
	for _, tc := range []struct {
		call, algorithm string
		d               tensor.DType
		list            [][]byte
		wantText        string
	}{
		{"half an element", "ring", tensor.Float32, [][]byte{b, b[:6]}, "vector 1"},
		{"between elements", "ring", tensor.Float32, [][]byte{b[2:10]}, "aligned"},
		{"no type", "ring", tensor.Invalid, [][]byte{b}, "type"},
		{"an algorithm that takes none", "pairwise", tensor.Float32, [][]byte{b}, "ring or shared"},
		{"no algorithm", "quickest", tensor.Float32, [][]byte{b}, "quickest"},
	} {
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			err := c.Bridge().AllReduceList(ctx, tc.algorithm, tc.d, tc.list, comm.Sum)
			if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), tc.wantText) {
				return fmt.Errorf("got %v, want fault.Misuse that says %q", err, tc.wantText)
			}
			return nil
		}, comm.WithTransportName("tcp"))
		if err != nil {
			t.Errorf("%s: %v", tc.call, err)
		}
	}
}

func TestListsOfDifferentLengthsAreAMismatch(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		list := [][]byte{make([]byte, 8), make([]byte, 16)}
		if c.Rank() == 1 {
			list[0], list[1] = list[1], list[0]
		}
		err := c.Bridge().AllReduceList(ctx, "ring", tensor.Float64, list, comm.Sum)
		if !errors.Is(err, fault.Mismatch) || strings.Count(err.Error(), "x3 in 2 vectors sum") < 2 || strings.Count(err.Error(), "lengths of hash") != 2 {
			return fmt.Errorf("got %v, want fault.Mismatch that names both lists", err)
		}
		return nil
	}, comm.WithTransportName("tcp"))
	if err != nil {
		t.Error(err)
	}
}

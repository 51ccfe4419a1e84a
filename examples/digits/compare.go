package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"gonum.org/v1/gonum/floats"

	"github.com/tutti-go/tutti/examples/internal/digits"
)

// tolerance bounds the relative Euclidean distance between the ranks' parameters and the parameters
// of a single process. Sums in a different order differ in their last bits, about 1e-16, and
// training amplifies the difference a little.
const tolerance = 1e-9

// identical fails unless all ranks hold the same bits. Equal numbers are not enough, because 0
// equals -0, and a NaN equals nothing. It first compares digests, which would suffice for a large
// model, and then every bit.
func identical(ctx context.Context, t team, params []float64) error {
	bits := make([]byte, 0, 8*len(params))
	for _, v := range params {
		bits = binary.LittleEndian.AppendUint64(bits, math.Float64bits(v))
	}
	digest := sha256.Sum256(bits)
	for _, mine := range [][]byte{digest[:], bits} {
		all, err := t.gather(ctx, mine)
		if err != nil {
			return err
		}
		for rank := range t.size {
			if theirs := all[rank*len(mine) : (rank+1)*len(mine)]; !bytes.Equal(theirs, mine) {
				return fmt.Errorf("parameters of rank %d: got other bits than on rank %d, want equal ones", rank, t.rank)
			}
		}
	}
	return nil
}

// distance returns the norm of got-want divided by the norm of want.
func distance(got, want []float64) float64 {
	return floats.Distance(got, want, 2) / floats.Norm(want, 2)
}

// matchesSingle trains once more, on rank 0 alone and on the same batches. On every rank it returns
// the distance of params from the result. It fails if the distance exceeds the tolerance or is not
// a number.
func matchesSingle(ctx context.Context, t team, s settings, data digits.Images, params []float64) (float64, error) {
	answer := make([]float64, 1)
	if t.rank == 0 {
		single, err := train(ctx, trainAlone(), s, data, nil)
		if err != nil {
			return 0, err
		}
		answer[0] = distance(params, single.Params)
	}
	if err := t.copyFirst(ctx, answer); err != nil {
		return 0, err
	}
	if !(answer[0] <= tolerance) {
		return answer[0], fmt.Errorf("relative distance to a single process: got %.3g, want at most %g", answer[0], tolerance)
	}
	return answer[0], nil
}

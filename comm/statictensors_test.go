package comm

import (
	"errors"
	"math"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

func TestInvalidStaticTensorBytesAreMisuse(t *testing.T) {
	for bytes, want := range map[int64]error{-1: fault.Misuse, 0: nil, maxStaticTensors: nil, maxStaticTensors + 1: fault.Misuse, math.MaxInt64: fault.Misuse} {
		if err := newOptions([]Option{WithParameters(Parameters{StaticTensors: bytes})}).check(0); !errors.Is(err, want) {
			t.Errorf("StaticTensors %d: got %v, want %v", bytes, err, want)
		}
	}
}

package storage

import (
	"math/rand/v2"
	"testing"

	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

// filled returns a table with the rows 0 to n-1 of float32.
func filled(tb testing.TB, o optimizer.Optimizer, n, width int) *Table {
	t, err := NewTable(Spec{Name: "t", DType: tensor.Float32, Optimizer: o}, width)
	if err != nil {
		tb.Fatal(err)
	}
	indices := make([]int64, 1000)
	gradients := make([]float32, len(indices)*width)
	for i := range gradients {
		gradients[i] = float32(i % 7)
	}
	for first := 0; first < n; first += len(indices) {
		for i := range indices {
			indices[i] = int64(first + i)
		}
		if err := t.Update([]Batch{{indices, tensor.Bytes(gradients)}}, 1); err != nil {
			tb.Fatal(err)
		}
	}
	return t
}

// distributions of 100,000 indices out of a million.
func distributions() map[string][]int64 {
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, 999_999)
	all := map[string][]int64{"uniform": make([]int64, 100_000), "zipf": make([]int64, 100_000)}
	for i := range 100_000 {
		all["uniform"][i] = random.Int64N(1_000_000)
		all["zipf"][i] = int64(zipf.Uint64())
	}
	return all
}

func BenchmarkTable(b *testing.B) {
	const width = 64
	for _, o := range []optimizer.Optimizer{optimizer.SGD{Rate: 0.1}, optimizer.Adagrad{Rate: 0.1}, optimizer.Adam{Rate: 0.1}} {
		t := filled(b, o, 1_000_000, width)
		for name, indices := range distributions() {
			values := make([]float32, len(indices)*width)
			b.Run("pull/"+o.String()+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(4 * len(values)))
				for b.Loop() {
					if err := t.Pull(indices, tensor.Bytes(values)); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("update/"+o.String()+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(4 * len(values)))
				for b.Loop() {
					if err := t.Update([]Batch{{indices, tensor.Bytes(values)}}, 1); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

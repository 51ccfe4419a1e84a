package reduce

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// BenchmarkFold folds 64 KiB, which stays in the cache, into the earlier share;
// MB/s counts the bytes of one share. A result is verified before it is timed.
func BenchmarkFold(b *testing.B) {
	for _, k := range allKernels() {
		b.Run(name(k), func(b *testing.B) { benchmarkFold(b, k, 64<<10) })
	}
}

// BenchmarkFoldElsewhere folds into memory of its own.
func BenchmarkFoldElsewhere(b *testing.B) {
	for _, k := range allKernels() {
		if k.Op().Name() != "sum" {
			continue
		}
		b.Run(name(k), func(b *testing.B) {
			earlier, later := operands(k, 64<<10)
			dst := aligned(len(earlier), 0)
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				k.Fold(dst, earlier, later)
			}
		})
	}
}

func benchmarkFold(b *testing.B, k Kernel, n int) {
	acc, later := operands(k, n)
	want := aligned(n, 0)
	size := k.DType().Size()
	for i := 0; i < n; i += size {
		k.Fold(want[i:i+size], acc[i:i+size], later[i:i+size])
	}
	if k.Fold(acc, acc, later); !bytes.Equal(significant(acc, k.DType()), significant(want, k.DType())) {
		b.Fatal("a wrong result")
	}
	b.SetBytes(int64(n))
	for b.Loop() {
		// Products and sums run into infinities or zeros with time; processors
		// take no longer for those. Subnormals would cost, so the operand keeps
		// its distance from zero.
		k.Fold(acc, acc, later)
	}
}

func operands(k Kernel, n int) (earlier, later []byte) {
	rng := rand.New(rand.NewPCG(20, 21))
	earlier, later = aligned(n, 0), aligned(n, 0)
	fill(rng, earlier, k.DType())
	fill(rng, later, k.DType())
	return earlier, later
}

// BenchmarkFinish divides 64 KiB by 3.
func BenchmarkFinish(b *testing.B) {
	for _, k := range allKernels() {
		if k.Op().Name() != "mean" {
			continue
		}
		b.Run(name(k), func(b *testing.B) {
			buf, _ := operands(k, 64<<10)
			fresh := bytes.Clone(buf)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				copy(buf, fresh) // or it would end among the subnormals
				k.Finish(buf, 3)
			}
		})
	}
}

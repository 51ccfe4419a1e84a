package reduce

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tutti-go/tutti/reduce/internal/vector"
	"github.com/tutti-go/tutti/tensor"
)

// BenchmarkFold folds into the earlier share at each level of this machine:
// fold/<level>/<operator>/<type>/<bytes of one share>. MB/s counts the bytes of one share.
// Results are verified before they are timed.
func BenchmarkFold(b *testing.B) {
	for _, level := range vector.Available() {
		for _, k := range kernelsOf(newTable(level)) {
			if level != vector.None && k.loops.vector == nil {
				continue // this level has no vector loop; the plain loop has been timed already
			}
			for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
				b.Run(fmt.Sprintf("%v/%s/%s", level, name(k), inUnits(n)), func(b *testing.B) { benchmarkFold(b, k, n) })
			}
		}
	}
}

func inUnits(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprintf("%dKiB", n>>10)
}

func benchmarkFold(b *testing.B, k Kernel, n int) {
	acc, later := operands(k, n)
	verify(b, k, acc, later)
	b.SetBytes(int64(n))
	for b.Loop() {
		// Repeated products and sums become infinities or zeros, which are as fast as other
		// numbers. Subnormals would be slower, so no element of the operand is near zero.
		k.Fold(acc, acc, later)
	}
}

// motif is the number of bytes of operands that differ. Longer operands repeat these bytes, so that
// they can be made and verified quickly.
const motif = 64 << 10

// verify compares a fold with plain Go. It does not change the operands.
func verify(b *testing.B, k Kernel, earlier, later []byte) {
	b.Helper()
	plain, err := k.Op().kernel(newTable(vector.None), k.DType())
	if err != nil {
		b.Fatal(err)
	}
	n := min(len(earlier), motif)
	want, got := aligned(n, 0), aligned(len(earlier), 0)
	plain.Fold(want, earlier[:n], later[:n])
	k.Fold(got, earlier, later)
	for ; len(got) > 0; got = got[n:] {
		if !bytes.Equal(significant(got[:n], k.DType()), significant(want, k.DType())) {
			b.Fatal("a wrong result")
		}
	}
}

func operands(k Kernel, n int) (earlier, later []byte) {
	rng := rand.New(rand.NewPCG(20, 21))
	earlier, later = aligned(n, 0), aligned(n, 0)
	for _, b := range [][]byte{earlier, later} {
		fill(rng, b[:min(n, motif)], k.DType())
		for i := motif; i < n; i += motif {
			copy(b[i:], b[:motif])
		}
	}
	return earlier, later
}

// BenchmarkFoldElsewhere folds into memory that holds neither operand.
func BenchmarkFoldElsewhere(b *testing.B) {
	for _, level := range vector.Available() {
		for _, k := range kernelsOf(newTable(level)) {
			if k.Op().Name() != "sum" {
				continue
			}
			b.Run(fmt.Sprintf("%v/%s", level, name(k)), func(b *testing.B) {
				earlier, later := operands(k, 64<<10)
				verify(b, k, earlier, later)
				dst := aligned(len(earlier), 0)
				b.SetBytes(int64(len(dst)))
				for b.Loop() {
					k.Fold(dst, earlier, later)
				}
			})
		}
	}
}

// BenchmarkFoldFewBytes measures the cost of a call.
func BenchmarkFoldFewBytes(b *testing.B) {
	for _, level := range vector.Available() {
		for _, d := range []tensor.DType{tensor.Float32, tensor.F16} {
			k, err := Sum.kernel(newTable(level), d)
			if err != nil {
				b.Fatal(err)
			}
			for _, n := range []int{4, 16, 64, 256} {
				acc, later := operands(k, n)
				verify(b, k, acc, later)
				b.Run(fmt.Sprintf("%v/%s/%d", level, name(k), n), func(b *testing.B) {
					for b.Loop() {
						k.Fold(acc, acc, later)
					}
				})
			}
		}
	}
}

// BenchmarkFinish divides by 3: finish/<level>/mean/<type>/<bytes>.
func BenchmarkFinish(b *testing.B) {
	for _, level := range vector.Available() {
		for _, k := range kernelsOf(newTable(level)) {
			if k.Op().Name() != "mean" {
				continue
			}
			for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
				b.Run(fmt.Sprintf("%v/%s/%s", level, name(k), inUnits(n)), func(b *testing.B) { benchmarkFinish(b, k, n) })
			}
		}
	}
}

func benchmarkFinish(b *testing.B, k Kernel, n int) {
	buf, _ := operands(k, n)
	plain, err := k.Op().kernel(newTable(vector.None), k.DType())
	if err != nil {
		b.Fatal(err)
	}
	want := bytes.Clone(buf)
	plain.Finish(want, 3)
	k.Finish(buf, 3)
	if firstDifference(k, buf, want) >= 0 {
		b.Fatal("a wrong result")
	}
	b.SetBytes(int64(n))
	for i := 0; b.Loop(); i++ {
		if i%8 == 0 { // otherwise the values would become subnormal
			b.StopTimer()
			copy(buf, want)
			b.StartTimer()
		}
		k.Finish(buf, 3)
	}
}

package cpu

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestCopyCopiesWhatTheBuiltinDoesAndNothingElse(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const room, around = 600 << 10, 64
	random := func() []byte {
		b := make([]byte, room)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	src := random()
	for _, n := range []int{0, 1, 31, 127, 128, 255, 256, 257, 4095, 4096, 65536, 256 << 10, 256<<10 + 129, 512<<10 + 1} {
		for _, at := range []int{0, 1, 7, 31, 32, 33} {
			for _, from := range []int{0, 3, 32} {
				got := random()
				want := bytes.Clone(got)
				copied := CopyNonTemporal(got[around+at:around+at+n], src[from:from+n])
				copy(want[around+at:], src[from:from+n])
				if copied != n || !bytes.Equal(got, want) {
					t.Fatalf("%d bytes from %d to %d: copied %d, or wrongly", n, from, at, copied)
				}
			}
		}
	}
}

func TestCopyUsesTheShorterLength(t *testing.T) {
	long, short := make([]byte, 1000), make([]byte, 500)
	if a, b := CopyNonTemporal(long, short), CopyNonTemporal(short, long); a != 500 || b != 500 {
		t.Errorf("copied %d and %d bytes, want 500", a, b)
	}
}

// BenchmarkCopyOutOfCache copies a cached piece into memory of several sizes. From MinNonTemporal
// on, for two ranks together, CopyNonTemporal must be the faster copy.
func BenchmarkCopyOutOfCache(b *testing.B) {
	piece := make([]byte, 64<<10)
	for _, size := range []int{1 << 20, 8 << 20, 64 << 20} {
		for name, do := range map[string]func(dst, src []byte) int{
			"copy":   func(dst, src []byte) int { return copy(dst, src) },
			"stream": CopyNonTemporal,
		} {
			b.Run(fmt.Sprintf("%s/%dMiB", name, size>>20), func(b *testing.B) {
				dst := make([]byte, size)
				b.SetBytes(int64(size))
				for b.Loop() {
					for at := 0; at < size; at += len(piece) {
						do(dst[at:at+len(piece)], piece)
					}
				}
			})
		}
	}
}

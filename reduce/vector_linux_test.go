package reduce

import (
	"math/rand/v2"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/reduce/internal/vector"
)

// No loop may access memory outside its operands. The operands lie between protected pages, so such
// an access faults.
func TestVectorLoopsKeepToTheirMemory(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	const most = 5 * 64
	page := syscall.Getpagesize()
	var fenced [3][]byte
	for i := range fenced {
		fenced[i] = fence(t, page)
	}
	plain := newTable(vector.None)
	atEachLevel(t, func(t *testing.T, tab *table) {
		rng := rand.New(rand.NewPCG(35, 36))
		for _, k := range kernelsOf(tab) {
			want, err := k.Op().kernel(plain, k.DType())
			if err != nil {
				t.Fatal(err)
			}
			for n := 0; n <= most; n += k.DType().Size() {
				foldFenced(t, k, want, rng, fenced, 0, n)
				foldFenced(t, k, want, rng, fenced, page-n, n)
			}
		}
	})
}

func foldFenced(t *testing.T, k, plain Kernel, rng *rand.Rand, fenced [3][]byte, from, n int) {
	t.Helper()
	defer func() {
		if fault := recover(); fault != nil {
			t.Fatalf("%s, %d bytes from %d: %v", name(k), n, from, fault)
		}
	}()
	dst, a, b := fenced[0][from:from+n], fenced[1][from:from+n], fenced[2][from:from+n]
	fill(rng, a, k.DType())
	fill(rng, b, k.DType())
	want := aligned(n, 0)
	plain.Fold(want, a, b)
	k.Fold(dst, a, b)
	if at := firstDifference(k, dst, want); at >= 0 {
		t.Fatalf("%s, %d bytes from %d: differs at byte %d", name(k), n, from, at)
	}
	k.Finish(dst, 2)
}

// fence returns a page of memory between two protected pages.
func fence(t *testing.T, page int) []byte {
	t.Helper()
	mem, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	for _, side := range [][]byte{mem[:page], mem[2*page:]} {
		if err := syscall.Mprotect(side, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return mem[page : 2*page]
}

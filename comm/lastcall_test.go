package comm

import (
	"strconv"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/tensor"
)

// Each heartbeat to each neighbour reads the last call. This must not allocate, whether the program
// is idle or calls from the same few call sites.
func TestLastCallTextAllocatesNothing(t *testing.T) {
	var w rankRuntime
	if got := w.LastCall(nil); len(got) > 0 {
		t.Errorf("got %q before any call", got)
	}
	words := make([]byte, 0, 200)
	calls := []func(to int){
		func(to int) {
			w.calls.recordInline(nil, &signature{callName: "send", root: noPeer, peer: to, tag: noPeer})
		},
		func(to int) {
			w.calls.recordInline(nil, &signature{callName: "send", dtype: tensor.Float32, count: to, root: noPeer, peer: to, tag: to})
		},
	}
	for i, call := range calls {
		call(1000 + i)
		want := []string{"send with rank 1000 at ", "send float32 x1001 with rank 1001 tag 1001 at "}[i] + "lastcall_test.go:"
		if got := w.LastCall([]byte("a ")); !strings.HasPrefix(string(got), "a "+want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	i := 0
	if got := testing.AllocsPerRun(100, func() {
		i++
		calls[i%2](i)
		words = w.LastCall(words[:0])
	}); got != 0 {
		t.Errorf("to ask after each call makes %v pieces of garbage, want none", got)
	}
	if want := " with rank " + strconv.Itoa(i); !strings.Contains(string(words), want) {
		t.Errorf("got %q, want %q", words, want)
	}
}

package transporttest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

func shareTests() []testCase {
	return []testCase{
		{"Sharer/AllGetTheSameMemory", allGetSameMemory},
		{"Sharer/NameMayBeSharedAgain", nameSharedAgain},
		{"Sharer/ShareWaitsForAll", shareWaitsForAll},
		{"Sharer/ShareEndsWithItsContext", shareEndsWithContext},
		{"Sharer/RanksThatDisagreeAreTold", shareDisagree},
		{"Sharer/CloseEndsShare", closeEndsShare},
	}
}

// sharers returns the cluster's Transports as Sharers. It skips the test if they are not Sharers.
func (w *cluster) sharers() []transport.Sharer {
	var all []transport.Sharer
	for _, node := range w.nodes {
		s, ok := node.Transport.(transport.Sharer)
		if ch, chooses := node.Transport.(transport.Selector); chooses {
			s = ch.SharerFor(w.addrs)
			ok = s != nil
		}
		if !ok {
			// Reason: memory that ranks share is an optional ability.
			w.tb.Skipf("%T is not a transport.Sharer", node.Transport)
		}
		all = append(all, s)
	}
	return all
}

// A share holds the results of one rank's Share.
type share struct {
	mem     []byte
	release func() error
	err     error
}

// shareAll calls Share on every rank, each on a goroutine of its own.
func (w *cluster) shareAll(ctx context.Context, name string, size func(rank int) int) []share {
	w.tb.Helper()
	sharers := w.sharers()
	all := make([]share, len(sharers))
	var wg sync.WaitGroup
	for i, s := range sharers {
		wg.Go(func() {
			all[i].mem, all[i].release, all[i].err = s.Share(ctx, name, len(sharers), size(i))
		})
	}
	w.within("Share", wg.Wait)
	return all
}

func background() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), waitLimit())
}

func allGetSameMemory(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 3)
	ctx, cancel := background()
	defer cancel()
	for _, size := range []int{0, 1, 100, 1 << 20} {
		w.checkShared(size, w.shareAll(ctx, fmt.Sprint("size", size), func(int) int { return size }))
	}
}

// checkShared checks that all ranks have the same zeroed memory of the given size, and releases the
// memory.
func (w *cluster) checkShared(size int, all []share) {
	w.tb.Helper()
	for i, s := range all {
		if s.err != nil {
			w.tb.Fatalf("Share by rank %d: %v", i, s.err)
		}
		if len(s.mem) != size {
			w.tb.Fatalf("Share by rank %d: got %d bytes, want %d", i, len(s.mem), size)
		}
		if size > 0 && reflect.ValueOf(s.mem).Pointer()%64 != 0 {
			w.tb.Errorf("Share by rank %d: the memory does not start at a multiple of 64", i)
		}
		for at, b := range s.mem {
			if b != byte(i) { // each earlier rank has added 1
				w.tb.Fatalf("rank %d: byte %d is %d, want %d", i, at, b, i)
			}
			s.mem[at]++
		}
	}
	for i, s := range all {
		if err := s.release(); err != nil {
			w.tb.Errorf("release by rank %d: %v", i, err)
		}
	}
}

func nameSharedAgain(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	ctx, cancel := background()
	defer cancel()
	for range 5 {
		w.checkShared(5000, w.shareAll(ctx, "again", func(int) int { return 5000 }))
	}
}

func shareWaitsForAll(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	sharers := w.sharers()
	ctx, cancel := background()
	defer cancel()
	first, came := share{}, make(chan struct{})
	go func() {
		defer close(came)
		first.mem, first.release, first.err = sharers[0].Share(ctx, "wait", 2, 10)
	}()
	select {
	case <-came:
		t.Fatalf("Share returned (error %v) before all had come", first.err)
	case <-time.After(5 * time.Millisecond):
	}
	var second share
	second.mem, second.release, second.err = sharers[1].Share(ctx, "wait", 2, 10)
	w.await("the first rank's Share", came)
	w.checkShared(10, []share{first, second})
}

// shareEndsWithContext calls Share on one rank only, with a short context. This Share must fail
// with fault.Timeout. Then all ranks call Share with the same name, and must succeed.
func shareEndsWithContext(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	sharers := w.sharers()
	short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	w.within("Share that nobody joins", func() {
		_, _, err := sharers[0].Share(short, "late", 2, 10)
		if !errors.Is(err, fault.Timeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, fault.Timeout)
		}
	})
	ctx, cancel := background()
	defer cancel()
	w.checkShared(10, w.shareAll(ctx, "late", func(int) int { return 10 }))
}

func shareDisagree(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	ctx, cancel := background()
	defer cancel()
	for i, s := range w.shareAll(ctx, "size", func(rank int) int { return 10 + rank }) {
		if !errors.Is(s.err, fault.Mismatch) {
			t.Errorf("rank %d: got %v, want %v", i, s.err, fault.Mismatch)
		}
	}
}

func closeEndsShare(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	sharers := w.sharers()
	ctx, cancel := background()
	defer cancel()
	came := make(chan struct{})
	go func() {
		defer close(came)
		_, _, err := sharers[0].Share(ctx, "closed", 2, 10)
		w.isFault("Share beside Close", err)
	}()
	w.within("Close", func() { w.closeNode(0) })
	w.await("the end of Share by Close", came)
}

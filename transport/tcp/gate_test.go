package tcp

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestGateHasOneReader(t *testing.T) {
	var g gate
	if g.enterReader() != entered || g.enterReader() != occupied || !g.enter() {
		t.Fatal("want one reader, and others beside it")
	}
	if g.leave() || g.leaveReader() || g.enterReader() != entered {
		t.Fatal("want the role to be free again")
	}
	if first, last := g.shut(); !first || last {
		t.Fatal("want the reader to be the last one")
	}
	if first, last := g.shut(); first || last {
		t.Fatal("want one first shut")
	}
	if g.enter() || g.enterReader() != shut {
		t.Fatal("want a shut gate to let nobody in")
	}
	if !g.leaveReader() {
		t.Fatal("want the reader to close")
	}
}

// However many come and go, one of them closes, after all others have left.
func TestGateIsClosedOnceByTheLast(t *testing.T) {
	for range 60 {
		var g gate
		var inside, closed atomic.Int32
		end := func(last bool) {
			if last && (inside.Load() != 0 || closed.Add(1) != 1) {
				t.Errorf("closed with %d inside, for the %dth time", inside.Load(), closed.Load())
			}
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for g.enter() {
					inside.Add(1)
					inside.Add(-1)
					end(g.leave())
				}
			})
			wg.Go(func() {
				for found := g.enterReader(); found != shut; found = g.enterReader() {
					if found == entered {
						inside.Add(1)
						inside.Add(-1)
						end(g.leaveReader())
					}
				}
			})
			wg.Go(func() {
				_, last := g.shut()
				end(last)
			})
		}
		wg.Wait()
		if closed.Load() != 1 {
			t.Fatalf("closed %d times, want once", closed.Load())
		}
	}
}

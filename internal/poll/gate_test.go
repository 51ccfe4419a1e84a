package poll

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestGateHasOneReader(t *testing.T) {
	var g Gate
	if g.EnterReader() != Entered || g.EnterReader() != Occupied || !g.Enter() {
		t.Fatal("want one reader, and others beside it")
	}
	if g.Exit() || g.ExitReader() || g.EnterReader() != Entered {
		t.Fatal("want the role to be free again")
	}
	if first, last := g.Close(); !first || last {
		t.Fatal("want the reader to be the last one")
	}
	if first, last := g.Close(); first || last {
		t.Fatal("want one first shut")
	}
	if g.Enter() || g.EnterReader() != GateClosed {
		t.Fatal("want a shut gate to let nobody in")
	}
	if !g.ExitReader() {
		t.Fatal("want the reader to close")
	}
}

// TestGateIsClosedOnceByTheLast checks that exactly one user of a closed gate is the last, and that
// all others have exited before it.
func TestGateIsClosedOnceByTheLast(t *testing.T) {
	for range 60 {
		var g Gate
		var inside, closed atomic.Int32
		end := func(last bool) {
			if last && (inside.Load() != 0 || closed.Add(1) != 1) {
				t.Errorf("closed with %d inside, for the %dth time", inside.Load(), closed.Load())
			}
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for g.Enter() {
					inside.Add(1)
					inside.Add(-1)
					end(g.Exit())
				}
			})
			wg.Go(func() {
				for found := g.EnterReader(); found != GateClosed; found = g.EnterReader() {
					if found == Entered {
						inside.Add(1)
						inside.Add(-1)
						end(g.ExitReader())
					}
				}
			})
			wg.Go(func() {
				_, last := g.Close()
				end(last)
			})
		}
		wg.Wait()
		if closed.Load() != 1 {
			t.Fatalf("closed %d times, want once", closed.Load())
		}
	}
}

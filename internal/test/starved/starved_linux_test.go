package starved

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// More threads are busy than there are processors. Of must count the time for which they wait.
func TestThreadsThatShareAProcessorStarve(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		// Reason: without schedstat the function Of returns 0. Some kernels lack schedstat, and so
		// do some sandboxes.
		t.Skipf("this kernel does not count how long threads wait for a processor: %v", err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2*runtime.NumCPU() + 1))
	before := Of(os.Getpid())
	var enough atomic.Bool
	var spinning sync.WaitGroup
	for range 2*runtime.NumCPU() + 1 {
		spinning.Go(func() {
			for !enough.Load() {
			}
		})
	}
	const most = 20 * time.Second // usually it takes some ms
	began := time.Now()
	for Of(os.Getpid()) <= before && time.Since(began) < most {
		runtime.Gosched()
	}
	enough.Store(true)
	spinning.Wait()
	if Of(os.Getpid()) <= before {
		t.Errorf("%d busy threads on %d processors have not starved in %v", 2*runtime.NumCPU()+1, runtime.NumCPU(), most)
	}
}

func TestAProcessThatIsNotThereDoesNotStarve(t *testing.T) {
	if got := Of(1 << 30); got != 0 {
		t.Errorf("got %v", got)
	}
}

func TestStolenTimeIsReadFromProcStat(t *testing.T) {
	const lines = "\ncpu0 1 2 3 4 5 6 7 800 9 10\n"
	for stat, want := range map[string]time.Duration{
		"cpu  4587809 833931 1767493 2374108 16775 0 80195 26225 0 0" + lines: 262250 * time.Millisecond,
		"cpu  1 2 3 4" + lines: 0,
		"":                     0,
	} {
		if got := stolen(stat); got != want {
			t.Errorf("%q: got %v, want %v", stat, got, want)
		}
	}
}

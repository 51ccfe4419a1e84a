package transporttest

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/transport"
)

func concurrencyTests() []testCase {
	return []testCase{
		{"ManyGoroutinesMaySend", manyGoroutinesSend},
		{"SendMayRunBesideProgress", sendBesideProgress},
		{"ManyGoroutinesMayPoll", manyGoroutinesPoll},
	}
}

// keepPolling starts a goroutine that polls e until the returned function is called. That function
// waits until the goroutine has ended.
func (e *endpoint) keepPolling() (stop func()) {
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for idle := 0; !over.Load(); {
			state, err := e.progress()
			if err != nil {
				return
			}
			if idle++; state == transport.Moved {
				idle = 0
			}
			backOff(idle)
		}
	}()
	return func() { over.Store(true); e.w.await("the end of a poller", ended) }
}

// stream sends n frames. Each frame contains the number of its sender and its own number. stream
// waits whenever 8 frames are not done. The returned function waits for the Done of the last
// frames, which may run after the frames have arrived. Another goroutine must poll e.
func (e *endpoint) stream(who byte, n int) (drain func()) {
	window := make(chan struct{}, 8)
	for i := range n {
		head := binary.LittleEndian.AppendUint32([]byte{who}, uint32(i))
		s := e.w.frame(head, pattern(i*37%5000, uint64(who)), func(err error) {
			if err != nil {
				e.w.errorf("frame %d of goroutine %d: %v", i, who, err)
			}
			<-window
		})
		select {
		case window <- struct{}{}:
		case <-time.After(waitLimit()):
			e.w.errorf("goroutine %d: no Done in %v after frame %d", who, waitLimit(), i)
			return func() {}
		}
		e.Send(&s.Frame)
	}
	return func() {
		for range cap(window) {
			window <- struct{}{}
		}
	}
}

// checkStreams checks that the frames of each goroutine have arrived once, whole and in order.
func (e *endpoint) checkStreams(goroutines, n int) {
	next := make([]int, goroutines)
	for _, got := range e.sink.got {
		who, i := got.head[0], int(binary.LittleEndian.Uint32(got.head[1:]))
		if i != next[who] {
			e.w.tb.Fatalf("goroutine %d: frame %d arrived, want %d", who, i, next[who])
		}
		next[who]++
		want := arrival{head: got.head, body: pattern(i*37%5000, uint64(who))}
		if err := want.differs(got); err != nil {
			e.w.tb.Fatalf("goroutine %d, frame %d: %v", who, i, err)
		}
	}
	for who, got := range next {
		if got != n {
			e.w.tb.Errorf("goroutine %d: %d frames arrived, want %d", who, got, n)
		}
	}
}

func manyGoroutinesSend(t *testing.T, mk Maker) {
	const goroutines = 8
	n := scaled(150)
	w, near, far := pair(t, mk)
	var wg sync.WaitGroup
	var drained atomic.Int32
	for who := range goroutines {
		wg.Go(func() {
			near.stream(byte(who), n)()
			drained.Add(1)
		})
	}
	w.until("the frames of all goroutines, and their Done", func() bool {
		return len(far.sink.got) == goroutines*n && drained.Load() == goroutines
	})
	wg.Wait()
	far.checkStreams(goroutines, n)
}

// sendBesideProgress sends on both ends, on two goroutines each, while another goroutine polls each
// end. The frames of each goroutine must arrive once and in order.
func sendBesideProgress(t *testing.T, mk Maker) {
	const goroutines = 2
	n := scaled(300)
	w, near, far := pair(t, mk)
	var arrived sync.WaitGroup
	arrived.Add(2 * goroutines * n)
	count := func(h transport.Header, n int) {
		if n == h.Size {
			arrived.Done()
		}
	}
	near.sink.partly, far.sink.partly = count, count
	stopNear, stopFar := near.keepPolling(), far.keepPolling()
	var wg sync.WaitGroup
	for who := range goroutines {
		wg.Go(func() { near.stream(byte(who), n)() })
		wg.Go(func() { far.stream(byte(who), n)() })
	}
	w.within("the Done of all frames", wg.Wait)
	w.within("the arrival of all frames", arrived.Wait)
	stopNear()
	stopFar()
	near.checkStreams(goroutines, n)
	far.checkStreams(goroutines, n)
}

// manyGoroutinesPoll polls one end on several goroutines with one Sink. The Sink has no lock, so
// Progress must let in one goroutine at a time, and return Busy to the others.
func manyGoroutinesPoll(t *testing.T, mk Maker) {
	const pollers = 4
	n := scaled(400)
	w, near, far := pair(t, mk)
	var arrived, failed atomic.Int32
	far.sink.partly = func(h transport.Header, n int) {
		if n == h.Size {
			arrived.Add(1)
		}
	}
	stopNear := near.keepPolling()
	var wg sync.WaitGroup
	for range pollers {
		wg.Go(func() {
			for int(arrived.Load()) < n && failed.Load() == 0 {
				if _, err := far.Conn.Progress(far.sink, 1); err != nil {
					w.errorf("Progress: %v", err)
					failed.Add(1)
				}
				runtime.Gosched()
			}
		})
	}
	drain := near.stream(0, n)
	w.within("the arrival of all frames", wg.Wait)
	w.within("the Done of all frames", drain)
	stopNear()
	far.checkStreams(1, n)
}

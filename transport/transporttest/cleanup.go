package transporttest

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

func cleanupTests() []testCase {
	return []testCase{
		{"UnusedTransportCloses", unusedCloses},
		{"ConnsThatCloseLeaveNothing", closedConnsReleaseAll},
		{"TransportCloseEndsItsConns", transportCloseEndsConns},
		{"TransportCloseLeavesNothingInTheMiddleOfTraffic", closeInTraffic},
		{"TransportMayBeClosedTwice", transportClosedTwice},
	}
}

// unusedCloses makes, serves and closes Transports. No goroutine or descriptor must remain, which
// the cluster's leak check reports.
func unusedCloses(t *testing.T, mk Maker) { newCluster(t, mk, 2) }

// closedConnsReleaseAll opens and closes many Conns, one after the other. They must leave no
// goroutine or descriptor, which the cluster's leak check reports.
func closedConnsReleaseAll(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	for i := range 60 {
		near, far := w.link(0, 1)
		w.exchange([]*sentFrame{near.send([]byte{byte(i)}, nil)}, far)
		near.Close()
		far.Close()
		w.ends = nil
	}
}

func transportCloseEndsConns(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	dialled, far := w.link(0, 1)
	other, accepted := w.link(1, 0)
	s := dialled.send(nil, make([]byte, 64<<20))
	w.within("Close", func() { w.closeNode(0) })
	w.poll("Done", nil, s.done)
	w.isClosed("Done", s.err)
	for _, e := range []*endpoint{dialled, accepted} {
		_, err := e.progress()
		w.isClosed(fmt.Sprint("Progress of the ", e.name), err)
	}
	w.poll("the peers' errors", []*endpoint{far, other}, func() bool { return far.err != nil && other.err != nil })
}

// closeInTraffic closes one of two Transports while goroutines send and poll on both. Close and
// every Send must return, and no goroutine or descriptor must remain: the cluster's leak check
// reports them.
func closeInTraffic(t *testing.T, mk Maker) {
	for round := range 3 {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			w := newCluster(t, mk, 2)
			var senders sync.WaitGroup
			var stops []func()
			for range 3 {
				near, far := w.link(0, 1)
				stops = append(stops, near.keepPolling(), far.keepPolling())
				for _, e := range []*endpoint{near, far} {
					senders.Go(func() { e.burst(200, pattern(round*9000, 1)) })
				}
			}
			<-time.After(time.Duration(round) * time.Millisecond) // the moment is arbitrary
			w.within("Close", func() { w.closeNode(round % 2) })
			w.within("the end of all senders", senders.Wait)
			for _, stop := range stops {
				stop()
			}
		})
	}
}

func transportClosedTwice(t *testing.T, mk Maker) {
	w, _, _ := pair(t, mk)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { w.closeNode(0) })
	}
	w.within("Close by two goroutines", wg.Wait)
	w.within("a third Close", func() { w.closeNode(0) })
}

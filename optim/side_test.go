package optim

import (
	"slices"
	"testing"
	"time"
)

func TestSidesByTheModel(t *testing.T) {
	for _, tc := range []struct {
		workers, servers int
		bytes, sent      float64
		want             Way
	}{
		{4, 4, 1 << 20, 1, Servers}, // as many servers as workers: 1 and not 1.5 times the bytes
		{4, 2, 1 << 20, 1, Ring},    // the servers' links are busy twice
		{2, 2, 1 << 20, 1, Ring},    // the same bytes
		{4, 4, 1 << 18, 1, Ring},    // fused
		{4, 4, 1 << 20, 0.1, Ring},  // the ring sends few elements; a pull has all
		{1, 1, 1 << 20, 1, Ring},
	} {
		c := &chooser{workers: tc.workers, servers: tc.servers, loads: []load{{tc.bytes, tc.sent}}}
		if got := c.first(); got[0] != tc.want {
			t.Errorf("%+v: got %v", tc, got[0])
		}
		if next := c.next(time.Second); next != nil {
			t.Errorf("%+v: got another choice %v without measurements", tc, next)
		}
	}
}

func TestSidesByMeasuredTimes(t *testing.T) {
	for _, tc := range []struct {
		ring, servers time.Duration
		want          Way
	}{{100, 50, Servers}, {50, 100, Ring}, {100, 95, Ring}} {
		c := &chooser{workers: 2, servers: 1, measures: true, loads: []load{{1 << 20, 1}, {1 << 10, 1}}}
		side := c.first()
		var changes [][]Way
		for step := range 40 {
			elapsed := tc.ring
			if side[0] == Servers {
				elapsed = tc.servers
			}
			if step%7 == 3 {
				elapsed *= 9 // an outlier
			}
			if next := c.next(elapsed); next != nil {
				side = next
				changes = append(changes, next)
			}
		}
		if len(changes) != 2 || !slices.Equal(changes[1], []Way{tc.want, Ring}) {
			t.Errorf("%+v: got %v, want the servers and then %v", tc, changes, tc.want)
		}
	}
}

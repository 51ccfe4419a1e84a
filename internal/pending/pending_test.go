package pending

import (
	"net"
	"testing"
	"time"
)

func TestLinesAboutRefusedConnectionsAreLimited(t *testing.T) {
	s := NewLog(nil)
	now := time.Now()
	logged, omitted := 0, 0
	count := func() {
		if before, ok := s.allow(now); ok {
			logged++
			omitted += before
		}
	}
	for range 1000 {
		count()
	}
	if logged != Burst || omitted != 0 {
		t.Errorf("of 1000 refusals at once %d are logged, and %d are called omitted, want %d and 0", logged, omitted, Burst)
	}
	for range 10 {
		now = now.Add(Interval)
		count()
	}
	if want := Burst + 10; logged != want || omitted != 1000-Burst {
		t.Errorf("10 intervals later: %d are logged, and %d are called omitted, want %d and %d", logged, omitted, want, 1000-Burst)
	}
}

func TestAddressesOfOneHostAreOneSource(t *testing.T) {
	for _, tc := range []struct{ addr, want string }{
		{"10.0.0.1:7", "10.0.0.1/32"},
		{"[::ffff:10.0.0.1]:7", "10.0.0.1/32"},
		{"[2001:db8::1]:7", "2001:db8::/64"},
		{"[2001:db8::ffff:1]:8", "2001:db8::/64"},
	} {
		addr, err := net.ResolveTCPAddr("tcp", tc.addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := Source(addr).String(); got != tc.want {
			t.Errorf("%s: got the source %s, want %s", tc.addr, got, tc.want)
		}
	}
}

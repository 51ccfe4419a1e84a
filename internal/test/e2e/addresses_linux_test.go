package e2e

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/internal/test/relay"
)

// needIPv6 skips the test on a system without IPv6.
func needIPv6(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		// Reason: containers and kernels may lack IPv6, and nothing replaces it.
		t.Skipf("no IPv6 here: %v", err)
	}
	l.Close()
}

// wantLayout checks the exits of ranks that run the program "places".
func (j *job) wantLayout(ranks int) {
	j.t.Helper()
	j.events("place", ranks)
	j.events("placed", ranks)
	for _, p := range j.ranks {
		p.wantExit(j, 0)
	}
}

func TestRanksFormAJobOverIPv6Loopback(t *testing.T) {
	t.Parallel()
	needIPv6(t)
	for _, wire := range streams() {
		l, err := net.Listen("tcp6", "[::1]:0")
		if err != nil {
			t.Fatal(err)
		}
		j := newJob(t)
		j.root = l.Addr().String()
		if j.listener, err = l.(*net.TCPListener).File(); err != nil {
			t.Fatal(err)
		}
		l.Close()
		for r := range 3 {
			j.rank(r, 3, wire, instruction{Program: "places"}, "TUTTI_LISTEN=[::1]")
		}
		j.wantLayout(3)
	}
}

// The hosts have one global address each, an IPv6 address of a private network.
func TestHostsThatHaveIPv6OnlyFormAJob(t *testing.T) {
	t.Parallel()
	needIPv6(t)
	const hosts = 2
	l := newHostNetwork(t, hosts)
	for n := range hosts {
		l.run("in", fmt.Sprintf("n%d", n), "ip", "-4", "addr", "flush", "dev", "eth0")
	}
	for i, c := range [][2]string{{"tcp", "TUTTI_INTERFACE=eth"}, {"grpc", "TUTTI_LISTEN=:7500-7509"}, {"tcp", "TUTTI_INTERFACE="}} {
		l.startJob(hosts, c[0], fmt.Sprintf("[fd77::10]:%d", 7400+i), instruction{Program: "places"}, c[1]).wantLayout(hosts)
	}
}

// Each rank listens on an address that a relay replaces: the relay forwards connections to it, like
// a gateway that maps a port. Only the address exchange with rank 0 does not pass a relay.
func TestRanksReachEachOtherAtTheAdvertisedAddresses(t *testing.T) {
	t.Parallel()
	const ranks = 3
	pid := os.Getpid()
	// Each rank listens on a port that was free a moment before. The address belongs to this
	// process, so no connection of another process takes the port meanwhile.
	host := fmt.Sprintf("127.%d.%d.%d:0", 100+pid>>16&0x7f, pid>>8&0xff, pid&0xff)
	for _, wire := range streams() {
		var passed atomic.Int32
		j := newJob(t)
		var env [ranks][]string
		var reserved [ranks]net.Listener
		for r := range ranks {
			l, err := net.Listen("tcp", host)
			if err != nil {
				t.Fatal(err)
			}
			reserved[r] = l
			listen := l.Addr().String()
			proxy, err := relay.New(listen, func(int) (up, down relay.Filter) {
				passed.Add(1)
				return nil, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(proxy.Close)
			if r == 0 {
				j.root = listen
			}
			env[r] = []string{"TUTTI_LISTEN=" + listen, "TUTTI_ADVERTISE=" + proxy.Addr()}
		}
		for r := range ranks {
			reserved[r].Close()
			j.rank(r, ranks, wire, instruction{Program: "places"}, env[r]...)
		}
		j.wantLayout(ranks)
		if n := passed.Load(); n < ranks {
			t.Errorf("%s: %d connections passed the relays, want one between each two ranks at least", wire, n)
		}
	}
}

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// free returns a loopback address on which nothing listens now.
func free(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestListenChoosesItsAddress(t *testing.T) {
	addr := free(t)
	secret := "TUTTI_SECRET=" + testSecret
	for name, c := range map[string]struct {
		env  string
		want string // part of the listener's address
	}{
		"alone":                      {"", "127.0.0.1:"},
		"rank 0 at the root":         {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=" + addr, addr},
		"rank 1, root on loopback":   {"TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:9 " + secret, "127.0.0.1:"},
		"rank 1, no secret":          {"TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_ROOT=localhost:9", "127.0.0.1:"},
		"own place in a list":        {"TUTTI_RANK=1 TUTTI_HOSTS=127.0.0.1:9," + addr, addr},
		"told where":                 {"TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:9 TUTTI_LISTEN=127.0.0.2", "127.0.0.2:"},
		"told where, the port known": {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_LISTEN=127.0.0.1 TUTTI_ROOT=" + addr, addr},
		"a service's address":        {"TUTTI_RANK=0 TUTTI_SIZE=2 " + secret + " TUTTI_ROOT=192.0.2.7:" + port(addr), ":" + port(addr)},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := finderOf(strings.Split(c.env, " ")...).find(Options{})
			if err != nil {
				t.Fatal(err)
			}
			l, err := j.Listen(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if got := l.Addr().String(); !strings.Contains(got, c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr)
	return p
}

func TestListenNamesTheProcessThatHasTheAddress(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	j, err := finderOf("TUTTI_RANK=0", "TUTTI_SIZE=2", "TUTTI_ROOT="+used.Addr().String()).find(Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = j.Listen(t.Context())
	if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("got %v", err)
	}
}

func TestARangeGivesEachRankAPortOfItsOwn(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	first, err := strconv.Atoi(port(used.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	listen := func(rank, last int, root string) (net.Listener, error) {
		f := finderOf(fmt.Sprintf("TUTTI_RANK=%d", rank), "TUTTI_SIZE=3", "TUTTI_ROOT="+root, fmt.Sprintf("TUTTI_LISTEN=127.0.0.1:%d-%d", first, last))
		j, err := f.find(Options{})
		if err != nil {
			t.Fatal(err)
		}
		return j.Listen(t.Context())
	}
	// The only other port of the range belongs to rank 0.
	_, err = listen(1, first+1, fmt.Sprintf("127.0.0.1:%d", first+1))
	want := fmt.Sprintf(`TUTTI_LISTEN="127.0.0.1:%d-%d" is used up`, first, first+1)
	if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "give more ports") {
		t.Errorf("got %v, want %s", err, want)
	}
	last := min(first+50, 65535)
	var got [3]int
	for r := range got {
		root := "127.0.0.1:9"
		if r == 0 {
			root = free(t)
		}
		l, err := listen(r, last, root)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		got[r], _ = strconv.Atoi(port(l.Addr().String()))
		if r == 0 && l.Addr().String() != root {
			t.Errorf("rank 0 listens at %s, want %s: the range is for the others", l.Addr(), root)
		}
		if r > 0 && (got[r] <= first || got[r] > last) {
			t.Errorf("rank %d got port %d, want one from %d to %d", r, got[r], first+1, last)
		}
	}
}

func TestListenNamesTheAddressesOfThisMachine(t *testing.T) {
	for _, listen := range []string{"192.0.2.7", "192.0.2.7:7000-7009"} {
		j, err := finderOf("TUTTI_RANK=1", "TUTTI_SIZE=2", "TUTTI_ROOT=127.0.0.1:9", "TUTTI_SECRET="+testSecret, "TUTTI_LISTEN="+listen).find(Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = j.Listen(t.Context())
		if !errors.Is(err, fault.Refused) {
			t.Errorf("%s: got %v, want Refused", listen, err)
			continue
		}
		for _, want := range []string{fmt.Sprintf("TUTTI_LISTEN=%q is no address of this machine", listen), "choose from", "127.0.0.1", "TUTTI_ADVERTISE"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q, want %q", listen, err, want)
			}
		}
	}
}

// This test checks that the wait for a name lasts until the deadline, and ends at once when the
// caller's context ends. The name has an empty label, so the resolver asks no name server for it.
func TestListenLooksUpNamesUntilTheDeadline(t *testing.T) {
	// The first lookup of a process makes channels that all later lookups use. These channels must
	// not belong to the bubble.
	net.DefaultResolver.LookupHost(t.Context(), "no..host")
	synctest.Test(t, func(t *testing.T) {
		for name, j := range map[string]*Job{
			"rank 0's name":                     {Root: "no..host:1"},
			"rank 0's name, several interfaces": {Root: "no..host:1", selected: addrsOf("127.0.0.1", "::1")},
			"the name in TUTTI_LISTEN":          {Root: "127.0.0.1:9", listen: "no..host:7000-7099"},
		} {
			j.Rank, j.Size, j.Secret, j.listenFD = 1, 2, make([]byte, 16), -1
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
			begun := time.Now()
			if _, err := j.Listen(ctx); !errors.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "no..host") || time.Since(begun) < 10*time.Minute {
				t.Errorf("%s: got %v after %v, want Timeout after ten minutes", name, err, time.Since(begun))
			}
			stop()
			ctx, stop = context.WithCancel(t.Context())
			stop()
			if _, err := j.Listen(ctx); !errors.Is(err, fault.Canceled) {
				t.Errorf("%s: got %v, want Canceled", name, err)
			}
		}
	})
}

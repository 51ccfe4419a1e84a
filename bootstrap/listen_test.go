package bootstrap

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"

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

// This test checks that the wait for a name that never appears ends after a limit, and at once when
// the caller's context ends.
func TestListenDoesNotWaitForEverForRootsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		j := &Job{Rank: 1, Size: 2, Root: "host.invalid:1", Secret: make([]byte, 16), listenFD: -1}
		if _, err := j.Listen(ctx); !errors.Is(err, fault.Canceled) {
			t.Errorf("got %v, want Canceled", err)
		}
	})
}

package shm

import (
	"crypto/rand"
	"errors"
	mrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/transport"
)

func randomName() string { return rand.Text() }

// hasSuffixRow reports whether a line of text has the given suffix.
func hasSuffixRow(text, what string) bool {
	return slices.ContainsFunc(strings.Split(text, "\n"), func(l string) bool { return strings.HasSuffix(l, what) })
}

// A killed process closes nothing, and leaves no mark in shared memory. The survivor must still
// notice the death, whether it polls or sleeps. Every body that has arrived must be complete.
func TestPeerKilledAtRandomMomentsIsNoticedWithinASecond(t *testing.T) {
	leak.Check(t)
	before := files(t)
	for round := range 12 {
		p := startPeer(t, "flood")
		c := dialPeer(t, p.addr)
		failed := make(chan error, 1)
		go func() {
			if round%2 == 0 {
				failed <- flood(c, func(s string) { t.Error(s) })
				return
			}
			failed <- pollUntil(c, new(bufferSink), 1<<60)
		}()
		// Reason: the test kills the process at an arbitrary moment.
		time.Sleep(mrand.N(15 * time.Millisecond))
		waited := starved.Since(os.Getpid())
		p.kill()
		killed := time.Now()
		err := receive(t, failed)
		if elapsed := time.Since(killed); elapsed > time.Second+waited() {
			t.Errorf("round %d: noticed after %v", round, elapsed)
		}
		if !errors.Is(err, fault.LinkLost) || !strings.Contains(err.Error(), "process has ended") {
			t.Errorf("round %d: got %v, want %v", round, err, fault.LinkLost)
		}
		done := make(chan error, 1)
		c.Send(&transport.Frame{Done: func(e error) { done <- e }})
		if err := receive(t, done); err == nil {
			t.Errorf("round %d: a frame sent to the dead is done without an error", round)
		}
	}
	if left := files(t); !slices.Equal(left, before) {
		t.Errorf("files are left behind: %q", left)
	}
}

func TestPeerCloseIsDistinguishedFromDeath(t *testing.T) {
	p := startPeer(t, "answer close")
	c := dialPeer(t, p.addr)
	p.shut()
	err := sleepUntil(c, new(bufferSink), func() bool { return false })
	if err == nil || !strings.Contains(err.Error(), "the peer closed") {
		t.Errorf("got %v", err)
	}
}

// There are more processes than cores, each with one thread for its goroutines, and all sleep when
// they have nothing to do. All must still make progress.
func TestMoreProcessesThanCoresMakeProgress(t *testing.T) {
	leak.Check(t)
	const peers, rounds = 6, 200
	failed := make(chan error, peers)
	for range peers {
		c := dialPeer(t, startPeer(t, "answer", "GOMAXPROCS=1").addr)
		go func() {
			in := new(bufferSink)
			for i := range rounds {
				c.Send(newFrame(i * i * 10))
				if err := sleepUntil(c, in, func() bool { return in.frames > i }); err != nil {
					failed <- err
					return
				}
				if in.last != i*i*10 {
					t.Errorf("got %d bytes, want %d", in.last, i*i*10)
				}
			}
			failed <- nil
		}()
	}
	for range peers {
		if err := receive(t, failed); err != nil {
			t.Error(err)
		}
	}
}

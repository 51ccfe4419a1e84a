package shm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// runSharePeer runs a peer that shares memory. Its argument is "name ranks size", optionally
// followed by a system call that is then forbidden to the peer. The peer adds 1 to the first word
// and waits until the others have done the same.
func runSharePeer(t *Transport, part []string) {
	ranks, _ := strconv.Atoi(part[1])
	size, _ := strconv.Atoi(part[2])
	if len(part) > 3 {
		if err := forbid(forbidden[part[3]]); err != nil {
			fmt.Println("no sandbox:", err)
			return
		}
	}
	fmt.Println("here")
	mem, release, err := t.Share(context.Background(), part[0], ranks, size)
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	count := (*atomic.Int32)(unsafe.Pointer(&mem[0]))
	count.Add(1)
	for int(count.Load()) < ranks {
		// Reason: other processes change the memory, which wakes nobody.
		time.Sleep(time.Millisecond)
	}
	release()
	bufio.NewReader(os.Stdin).ReadByte()
}

// hasHost reports whether the Share with the given name has a host.
func hasHost(t *Transport, name string) bool {
	text, _ := os.ReadFile("/proc/net/unix")
	return hasSuffixRow(string(text), "@"+t.shareName(name))
}

func TestProcessesShareMemory(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	defer tr.Close()
	name := t.Name() + randomName()
	for range 3 {
		startPeer(t, "share "+name+" 4 4096")
	}
	mem, release, err := tr.Share(testContext(t), name, 4, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	count := (*atomic.Int32)(unsafe.Pointer(&mem[0]))
	count.Add(1)
	for deadline := time.Now().Add(testTimeout); count.Load() < 4; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 4 processes have written into the memory", count.Load())
		}
		// Reason: other processes change the memory, which wakes nobody.
		time.Sleep(time.Millisecond)
	}
}

// The first process is the host. When it is killed, one of the other processes must become the
// host.
func TestShareOutlivesTheDeathOfItsHost(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	defer tr.Close()
	for range 4 {
		name := t.Name() + randomName()
		first := startPeer(t, "share "+name+" 3 100")
		// Reason: the loop waits until the other process is the host, which reports nothing yet.
		for deadline := time.Now().Add(testTimeout); !hasHost(tr, name); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nobody hosts the share")
			}
		}
		startPeer(t, "share "+name+" 3 100")
		time.AfterFunc(5*time.Millisecond, first.kill)
		got := make(chan error, 1)
		go func() {
			_, release, err := tr.Share(testContext(t), name, 3, 100)
			if err == nil {
				release()
			}
			got <- err
		}()
		first.kill()
		startPeer(t, "share "+name+" 3 100")
		if err := receive(t, got); err != nil {
			t.Fatal(err)
		}
	}
}

func TestShareRefusesInvalidArguments(t *testing.T) {
	tr := New(Options{})
	for _, tc := range [][2]int{{0, 10}, {-1, 10}, {1, -1}, {1 << 40, 1}} {
		if _, _, err := tr.Share(t.Context(), "name", tc[0], tc[1]); !errors.Is(err, fault.Misuse) {
			t.Errorf("%d ranks, %d bytes: got %v, want %v", tc[0], tc[1], err, fault.Misuse)
		}
	}
	mem, release, err := tr.Share(t.Context(), "alone", 1, 10)
	if err != nil || len(mem) != 10 || cap(mem) != 10 {
		t.Fatalf("alone: got %d bytes, %v", len(mem), err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if err := release(); !errors.Is(err, fault.Misuse) {
		t.Errorf("a second release: got %v, want %v", err, fault.Misuse)
	}
}

func TestShareByTheSameRankTwiceIsMisuse(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	defer tr.Close()
	name := t.Name() + randomName()
	ctx, cancel := context.WithCancel(testContext(t))
	first := make(chan error, 1)
	go func() {
		_, _, err := tr.Share(ctx, name, 2, 10)
		first <- err
	}()
	for !hasHost(tr, name) {
		// Reason: Share reports nothing before all ranks have come.
		time.Sleep(time.Millisecond)
	}
	if _, _, err := tr.Share(ctx, name, 2, 10); !errors.Is(err, fault.Misuse) {
		t.Errorf("got %v, want %v", err, fault.Misuse)
	}
	cancel()
	if err := receive(t, first); !errors.Is(err, fault.Canceled) {
		t.Errorf("the first one: got %v, want %v", err, fault.Canceled)
	}
}

// Ranks give up at random moments, and some try again. Every call must end, with the memory or with
// the error of its context.
func TestCanceledSharesBlockNoOtherRank(t *testing.T) {
	leak.Check(t)
	const ranks = 4
	job := randomName()
	var all [ranks]*Transport
	for i := range all {
		all[i] = New(Options{Job: job})
		defer all[i].Close()
	}
	for round := range 30 {
		got := make(chan error, ranks)
		for i, tr := range all {
			limit := testTimeout
			if i == round%ranks {
				limit = time.Duration(round) * 50 * time.Microsecond
			}
			go func() {
				var err error
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				_, release, err := tr.Share(ctx, "name", ranks, 100)
				if errors.Is(err, fault.Timeout) {
					_, release, err = tr.Share(testContext(t), "name", ranks, 100)
				}
				if err == nil {
					release()
				}
				got <- err
			}()
		}
		for range ranks {
			if err := receive(t, got); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
}

// files lists /dev/shm, where this package must never create a file.
func files(tb testing.TB) []string {
	names, err := filepath.Glob("/dev/shm/*")
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tutti-go/tutti/internal/test/leak"
)

// serve returns a Client of s, and a function that closes the server's end of the connection. Both
// ends are closed when the test ends.
func serve(t *testing.T, s Store) (c *Client, end func()) {
	t.Helper()
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		Serve(ours, s)
	}()
	c = NewClient(theirs)
	t.Cleanup(func() {
		c.Close()
		<-served
	})
	return c, func() { ours.Close() }
}

// stores returns the implementations, each empty.
func stores(t *testing.T) map[string]Store {
	remote, _ := serve(t, NewMemory())
	part, _ := serve(t, RankView{Shared: NewMemory(), Own: NewMemory()})
	return map[string]Store{"memory": NewMemory(), "client": remote, "own part": part}
}

const key = ReadyKey // valid in every Store

func TestOneOfManySwapsOfAVersionSucceeds(t *testing.T) {
	leak.Check(t)
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			const goroutines, rounds = 8, 50
			ctx := t.Context()
			for round := range uint64(rounds) {
				var won sync.Map
				var work sync.WaitGroup
				for g := range goroutines {
					work.Go(func() {
						ok, err := s.CompareAndSwap(ctx, key, round, fmt.Append(nil, round, g))
						if err != nil {
							t.Error(err)
						}
						if ok {
							won.Store(g, nil)
						}
					})
				}
				work.Wait()
				winners := 0
				won.Range(func(g, _ any) bool {
					winners++
					e, err := s.Get(ctx, key)
					if want := fmt.Append(nil, round, g); err != nil || e.Version != round+1 || !bytes.Equal(e.Value, want) {
						t.Errorf("got version %d with %q, %v, want %d with %q", e.Version, e.Value, err, round+1, want)
					}
					return true
				})
				if winners != 1 {
					t.Fatalf("version %d: got %d winners, want 1", round, winners)
				}
			}
		})
	}
}

func TestWatchWaitsForAnotherVersion(t *testing.T) {
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			got := make(chan Versioned)
			for version := range uint64(3) {
				go func() {
					e, err := s.Watch(ctx, key, version)
					if err != nil {
						t.Error(err)
					}
					got <- e
				}()
				if ok, err := s.CompareAndSwap(ctx, key, version, []byte("value")); !ok || err != nil {
					t.Fatalf("swap: got %v, %v", ok, err)
				}
				if e := <-got; e.Version != version+1 || string(e.Value) != "value" {
					t.Errorf("got version %d with %q, want %d", e.Version, e.Value, version+1)
				}
			}
			ended, cancel := context.WithCancel(ctx)
			go func() {
				_, err := s.Watch(ended, key, 3)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want Canceled", err)
				}
				close(got)
			}()
			cancel()
			<-got
		})
	}
}

func TestKeysAndValuesAreBounded(t *testing.T) {
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			large := make([]byte, MaxValue)
			if ok, err := s.CompareAndSwap(ctx, key, 0, large); !ok || err != nil {
				t.Errorf("the largest value: got %v, %v", ok, err)
			}
			if e, err := s.Get(ctx, key); err != nil || len(e.Value) != MaxValue {
				t.Errorf("the largest value: got %d bytes, %v", len(e.Value), err)
			}
			if ok, err := s.CompareAndSwap(ctx, key, 1, make([]byte, MaxValue+1)); ok || err == nil {
				t.Error("a value that is too large was accepted")
			}
			if ok, err := s.CompareAndSwap(ctx, own+strings.Repeat("k", MaxKey), 0, nil); ok || err == nil {
				t.Error("a key that is too large was accepted")
			}
			if name == "own part" {
				return // this Store has three keys
			}
			n := 1
			for ; n <= MaxKeys; n++ {
				if ok, err := s.CompareAndSwap(ctx, fmt.Sprint(own, n), 0, nil); !ok || err != nil {
					break
				}
			}
			if n != MaxKeys {
				t.Errorf("got %d keys, want at most %d", n, MaxKeys)
			}
		})
	}
}

func TestAViewChangesOnlyItsOwnPart(t *testing.T) {
	shared := NewMemory()
	shared.CompareAndSwap(t.Context(), EpochKey, 0, []byte("epoch"))
	mine, other := NewMemory(), NewMemory()
	other.CompareAndSwap(t.Context(), CredentialsKey, 0, []byte("private"))
	s := RankView{shared, mine}
	if e, err := s.Get(t.Context(), EpochKey); err != nil || string(e.Value) != "epoch" {
		t.Errorf("epoch: got %q, %v", e.Value, err)
	}
	if ok, err := s.CompareAndSwap(t.Context(), EpochKey, 1, []byte("lie")); ok || err == nil {
		t.Error("a rank has changed the epoch")
	}
	if e, err := s.Get(t.Context(), CredentialsKey); err != nil || e.Version != 0 {
		t.Errorf("credentials of another rank: got %q, %v", e.Value, err)
	}
	if ok, err := s.CompareAndSwap(t.Context(), CredentialsKey, 0, []byte("mine")); ok || err == nil {
		t.Error("a rank has changed its credentials")
	}
}

// A rank that asks for many keys must not use up the launcher's room for the epoch.
func TestAViewRefusesOtherKeys(t *testing.T) {
	shared, mine := NewMemory(), NewMemory()
	s := RankView{shared, mine}
	for i := range 2 * MaxKeys {
		for _, k := range []string{fmt.Sprint(i), fmt.Sprint(own, i)} {
			if _, err := s.Watch(t.Context(), k, 1); err == nil {
				t.Fatalf("%q: got an answer", k)
			}
			if _, err := s.Get(t.Context(), k); err == nil {
				t.Fatalf("%q: got an answer", k)
			}
			if ok, err := s.CompareAndSwap(t.Context(), k, 0, nil); ok || err == nil {
				t.Fatalf("%q: got a change", k)
			}
		}
	}
	for m, k := range map[*Memory]string{shared: EpochKey, mine: CredentialsKey} {
		if ok, err := m.CompareAndSwap(t.Context(), k, 0, []byte("new")); !ok || err != nil {
			t.Errorf("%s: got %v, %v, want room for it", k, ok, err)
		}
	}
}

func TestRequestsEndWhenTheOtherEndIsGone(t *testing.T) {
	leak.Check(t)
	c, end := serve(t, NewMemory())
	watched := make(chan error)
	go func() {
		_, err := c.Watch(t.Context(), key, 0)
		watched <- err
	}()
	if _, err := c.Get(t.Context(), key); err != nil { // the connection works
		t.Fatal(err)
	}
	end()
	if err := <-watched; !errors.Is(err, ErrClosed) {
		t.Errorf("a watch under way: got %v, want ErrClosed", err)
	}
	if _, err := c.Get(t.Context(), key); !errors.Is(err, ErrClosed) {
		t.Errorf("a later request: got %v, want ErrClosed", err)
	}
}

// A client that ends its watches must not use up the server's bound, and must not leave goroutines.
func TestACanceledWatchEndsOnTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := serve(t, NewMemory())
		for range 3 * maxRequests {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			c.Watch(ctx, key, 0)
			synctest.Wait()
		}
		if _, err := c.Get(t.Context(), key); err != nil {
			t.Errorf("a request after them: %v", err)
		}
	})
}

func TestServeEndsAConnectionThatLies(t *testing.T) {
	leak.Check(t)
	for name, text := range map[string]string{
		"no JSON":               "hello\n",
		"a line without an end": strings.Repeat("x", maxLine+1),
		"one id twice":          strings.Repeat(`{"id":1,"op":"watch","key":"k"}`+"\n", 2),
		"too many requests":     manyWatches(maxRequests + 1),
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go func() {
				io.WriteString(theirs, text)
			}()
			Serve(ours, NewMemory())
			if n, err := theirs.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("got %d bytes, %v, want EOF", n, err)
			}
		})
	}
}

func manyWatches(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"id":%d,"op":"watch","key":"k"}`+"\n", i+1)
	}
	return b.String()
}

// Two programs that a script starts one after the other use one connection. The second must not get
// an answer to a request of the first.
func TestAnAnswerToAnEarlierClientIsDropped(t *testing.T) {
	m := NewMemory()
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		Serve(ours, m)
	}()
	if _, err := io.WriteString(theirs, `{"id":1,"op":"watch","key":"k"}`+"\n"); err != nil { // the earlier program, which has ended
		t.Fatal(err)
	}
	c := NewClient(theirs)
	if ok, err := c.CompareAndSwap(t.Context(), "k", 0, []byte("v")); !ok || err != nil { // the watch is answered now, too
		t.Fatalf("swap: got %v, %v", ok, err)
	}
	if e, err := c.Get(t.Context(), "k"); err != nil || string(e.Value) != "v" {
		t.Errorf("got %q, %v, want v", e.Value, err)
	}
	c.Close()
	<-served
}

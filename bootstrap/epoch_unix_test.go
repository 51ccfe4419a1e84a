//go:build unix

package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/store"
	"github.com/tutti-go/tutti/internal/vars"
)

// A fakeLauncher holds the record of a job whose only process under test is this one.
type fakeLauncher struct {
	t           *testing.T
	ca          *jobca.Authority
	shared, own *store.Memory
	conn        net.Conn
	fd          int // what the process inherits
}

// newFakeLauncher gives this process the environment of a process in a job whose ranks change.
func newFakeLauncher(t *testing.T) *fakeLauncher {
	t.Helper()
	ca, err := jobca.New("train")
	if err != nil {
		t.Fatal(err)
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fds[0]), "launcher")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	l := &fakeLauncher{t: t, ca: ca, shared: store.NewMemory(), own: store.NewMemory(), conn: conn, fd: fds[1]}
	served := make(chan struct{})
	go func() {
		defer close(served)
		store.Serve(conn, store.RankView{Shared: l.shared, Own: l.own})
	}()
	t.Cleanup(func() {
		conn.Close()
		<-served
		inherited.members = nil
	})
	t.Setenv(vars.StoreFD, fmt.Sprint(fds[1]))
	t.Setenv(vars.Job, "train")
	return l
}

// find returns what Find finds.
func (l *fakeLauncher) find() *Job {
	l.t.Helper()
	j, err := Find(Options{})
	if err != nil || !j.Elastic() {
		l.t.Fatalf("got %v, %v, want a job whose ranks change", j, err)
	}
	return j
}

// write replaces a value.
func (l *fakeLauncher) write(m *store.Memory, key string, value []byte) {
	l.t.Helper()
	old, _ := m.Get(l.t.Context(), key)
	if ok, err := m.CompareAndSwap(l.t.Context(), key, old.Version, value); !ok || err != nil {
		l.t.Fatal(ok, err)
	}
}

// form makes this process a rank of an epoch.
func (l *fakeLauncher) form(rank int, e store.Epoch) {
	l.t.Helper()
	c, err := l.ca.Issue(rank, e.Number)
	if err != nil {
		l.t.Fatal(err)
	}
	text, err := (&jobca.Bundle{Secret: fmt.Appendf(nil, "the secret of epoch %d", e.Number), Credentials: c}).Marshal()
	if err != nil {
		l.t.Fatal(err)
	}
	l.write(l.own, store.CredentialsKey, text)
	l.publish(e)
}

// publish replaces the Epoch.
func (l *fakeLauncher) publish(e store.Epoch) {
	l.t.Helper()
	text, _ := json.Marshal(e) // cannot fail, because all fields are plain
	l.write(l.shared, store.EpochKey, text)
}

// asked waits for the request with the given number, and returns the address in it.
func (l *fakeLauncher) asked(n uint64) string {
	l.t.Helper()
	e, err := l.own.Watch(l.t.Context(), store.ReadyKey, n-1)
	if err != nil || e.Version != n {
		l.t.Fatalf("request: got number %d, %v, want %d", e.Version, err, n)
	}
	return string(e.Value)
}

func TestJoinReturnsTheNextEpochOfWhichThisProcessIsAMember(t *testing.T) {
	l := newFakeLauncher(t)
	j := l.find()
	if _, set := os.LookupEnv(vars.StoreFD); set {
		t.Error("children inherit the variable")
	}
	if _, err := syscall.Getsockname(l.fd); err == nil {
		t.Error("children inherit the descriptor")
	}
	for i := range uint32(2) {
		joined := make(chan *Job)
		go func() {
			next, err := l.find().Join(t.Context()) // a later Find has the same connection
			if err != nil {
				t.Error(err)
			}
			joined <- next
		}()
		addr := l.asked(uint64(i) + 1)
		l.publish(store.Epoch{Number: 2*i + 5, Members: []int{3, 4}, Hosts: []int{0, 0}, Root: "elsewhere:1"}) // of other processes
		l.form(1, store.Epoch{Number: 2*i + 6, Members: []int{8, 7, 9}, Hosts: []int{1, 0, 0}, Root: "root:1"})
		got := <-joined
		if got == nil {
			t.FailNow()
		}
		c, err := got.Credentials()
		if err != nil || c.Name() != jobca.NewName("train", 2*i+6, 1) || string(got.Secret) != fmt.Sprintf("the secret of epoch %d", 2*i+6) {
			t.Errorf("got secret %q and credentials %v, %v", got.Secret, c, err)
		}
		if got.Rank != 1 || got.Size != 3 || got.LocalRank != 0 || got.LocalSize != 2 || got.Root != "root:1" || got.Incarnation != 2*i+6 {
			t.Errorf("got %+v", got)
		}
		listener, err := got.Listen(t.Context())
		if err != nil || listener.Addr().String() != addr {
			t.Errorf("listener: got %v, %v, want the announced %s", listener, err, addr)
		}
		listener.Close()
	}
	if j.Rank != unknown || j.Size != 0 {
		t.Errorf("Join has changed the job that it was called on: %+v", j)
	}
}

func TestJoinEndsWithoutAnEpoch(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(l *fakeLauncher, cancel context.CancelFunc)
		kind fault.Kind
	}{
		"the job cannot go on":  {func(l *fakeLauncher, _ context.CancelFunc) { l.publish(store.Epoch{Failed: "too few"}) }, fault.NoQuorum},
		"the launcher is gone":  {func(l *fakeLauncher, _ context.CancelFunc) { l.conn.Close() }, fault.NoQuorum},
		"the context ends":      {func(_ *fakeLauncher, cancel context.CancelFunc) { cancel() }, fault.Canceled},
		"the record is damaged": {func(l *fakeLauncher, _ context.CancelFunc) { l.write(l.shared, store.EpochKey, []byte("?")) }, fault.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			l := newFakeLauncher(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error)
			go func() {
				_, err := l.find().Join(ctx)
				ended <- err
			}()
			addr := l.asked(1)
			c.end(l, cancel)
			if err := <-ended; !errors.Is(err, c.kind) {
				t.Errorf("got %v, want %v", err, c.kind)
			}
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				t.Error("the listener is still open")
			}
		})
	}
}

// If the launcher still counted this process as waiting, it could form an epoch that never begins.
func TestAJoinWhoseContextEndsIsWithdrawn(t *testing.T) {
	l := newFakeLauncher(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := l.find().Join(ctx)
		ended <- err
	}()
	l.asked(1)
	cancel()
	if err := <-ended; !errors.Is(err, fault.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	if e, err := l.own.Get(t.Context(), store.ReadyKey); err != nil || e.Version != 2 || len(e.Value) != 0 {
		t.Errorf("request: got version %d with %q, %v, want 2, empty", e.Version, e.Value, err)
	}
}

func TestChangesOfAnEpoch(t *testing.T) {
	for name, c := range map[string]struct {
		e              store.Epoch
		breaks, change bool
	}{
		"a member has failed":     {store.Epoch{Number: 1, Broken: true}, true, true},
		"a member has finished":   {store.Epoch{Number: 1, Finished: true}, true, false},
		"a process waits":         {store.Epoch{Number: 1, Waiting: true}, false, true},
		"the next epoch is there": {store.Epoch{Number: 2}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &fakeLauncher{t: t, shared: store.NewMemory()}
				j := &Job{Incarnation: 1, members: &membership{store: l.shared}}
				var breaks, changes atomic.Bool
				go func() { breaks.Store(j.AwaitBreak(t.Context()) == nil) }()
				go func() { changes.Store(j.AwaitChange(t.Context()) == nil) }()
				l.publish(store.Epoch{Number: 1})
				synctest.Wait()
				if breaks.Load() || changes.Load() {
					t.Error("a wait has ended before a change")
				}
				l.publish(c.e)
				synctest.Wait()
				if breaks.Load() != c.breaks || changes.Load() != c.change {
					t.Errorf("got break %v and change %v, want %v and %v", breaks.Load(), changes.Load(), c.breaks, c.change)
				}
			})
		})
	}
}

func TestADescriptorThatIsNoSocketIsRefusedAndStaysOpen(t *testing.T) {
	fd := descriptor(t, []byte("text"))
	t.Setenv(vars.StoreFD, fmt.Sprint(fd))
	_, err := Find(Options{})
	if err == nil || !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), vars.StoreFD) {
		t.Errorf("got %v, want Refused that names the variable", err)
	}
	if _, err := syscall.Seek(fd, 0, 0); err != nil {
		t.Errorf("the descriptor was closed: %v", err)
	}
}

package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/store"
	"github.com/tutti-go/tutti/internal/vars"
)

// A membership is this process's connection to a launcher that decides which processes are the
// ranks of the job. The connection stays open as long as the process runs.
type membership struct {
	store store.Store

	mu   sync.Mutex // guards last
	last int64      // the number of the last epoch that this process was a member of; -1: there was none
}

// membership connects to the launcher's store by TUTTI_STORE_FD, or returns the connection of an
// earlier Find. It returns nil if the launcher has no store. Like a secret, the connection belongs
// to the whole process, and no child inherits it.
func (f *finder) membership() (*membership, error) {
	fd, set, err := f.number(unknown, vars.StoreFD, 3, 1<<20)
	if err != nil || !f.own {
		return nil, err
	}
	inherited.mu.Lock()
	defer inherited.mu.Unlock()
	if !set {
		return inherited.members, nil
	}
	conn, err := adoptConn(fd)
	if err != nil {
		return nil, badVariable(unknown, vars.StoreFD, itoa(fd), "is no connection to a launcher ("+err.Error()+")",
			"the launcher sets the variable for one process: unset it, or start the ranks with tuttirun")
	}
	os.Unsetenv(vars.StoreFD)
	inherited.members = &membership{store: store.NewClient(conn), last: -1}
	return inherited.members, nil
}

// joining returns the Job of a process to which the launcher has not given a rank yet. It returns
// nil if the launcher has no store.
func (f *finder) joining() (*Job, error) {
	m, err := f.membership()
	if m == nil || err != nil {
		return nil, err
	}
	j := newJob(vars.StoreFD)
	j.Rank, j.Size, j.members, j.finder = unknown, 0, m, f
	return j, f.identity(j)
}

// Elastic reports whether the launcher decides which processes are the ranks of the job. Such a job
// has no rank, size or secret before Join.
func (j *Job) Elastic() bool { return j.members != nil }

// Join returns the complete job. If Find has completed it, Join returns j. If the launcher has a
// key-value store (PMI, PMIx), Join waits until all ranks have called Join, and learns rank, size,
// rank 0's address and the secret. The wait is bounded by the deadline of ctx. Without a deadline
// it is bounded by Timeout if TimeoutSet is true, or else by five minutes.
//
// In an elastic job, Join asks the launcher for the next epoch, and waits until it is formed with
// this process as a member. It returns the job of that epoch, which has its own rank, size, secret
// and certificate.
// Its incarnation is the number of the epoch, so processes of other epochs are refused. Join also
// opens the listener that Listen of the result returns.
//
// The launcher forms an epoch when every process that it has not seen end has asked for it. Join
// returns fault.NoQuorum if there will be no such epoch, or if the launcher is gone. It returns
// fault.Timeout or fault.Canceled when ctx ends; this process may then call Join again. One
// goroutine at a time may call Join.
func (j *Job) Join(ctx context.Context) (*Job, error) {
	switch {
	case j.meeting != nil:
		return j.meet(ctx)
	case !j.Elastic():
		return j, nil
	}
	for {
		next := *j
		err := next.enterEpoch(ctx)
		switch {
		case err == nil:
			return &next, nil
		case err == errListenAgain:
			continue
		case ctx.Err() != nil:
			j.members.withdraw(ctx)
		}
		return nil, j.storeError(ctx, "the launcher has not formed an epoch with this process: not all processes have called Init or Rejoin", err)
	}
}

// errListenAgain says that the job got a second host after this process had opened its listener on
// loopback.
var errListenAgain = errors.New("listener: got one on loopback, want one that other hosts reach")

// enterEpoch opens the listener, sends its address to the launcher, and waits for the next epoch.
// By default this process listens on the local address of its route to the launcher. TUTTI_LISTEN,
// TUTTI_INTERFACE and TUTTI_ADVERTISE take precedence.
func (j *Job) enterEpoch(ctx context.Context) error {
	m := j.members
	entry, err := m.store.Get(ctx, store.EpochKey)
	if err != nil {
		return err
	}
	e, err := decodeEpoch(entry)
	if err != nil {
		return err
	}
	j.Root, j.Loopback = e.Launcher, e.Launcher == ""
	if j.listener, err = j.Listen(ctx); err != nil {
		return err
	}
	if err = m.announce(ctx, strings.TrimSpace(j.listener.Addr().String()+" "+e.Launcher)); err == nil {
		err = j.awaitEpoch(ctx, e.Launcher)
	}
	if err != nil {
		j.Close()
	}
	return err
}

// awaitEpoch waits for the next epoch of which this process is a member. The parameter launcher is
// the launcher's address that was known when this process opened its listener.
func (j *Job) awaitEpoch(ctx context.Context, launcher string) error {
	m := j.members
	m.mu.Lock()
	last := m.last
	m.mu.Unlock()
	for version := uint64(0); ; {
		e, at, err := m.watch(ctx, version)
		switch {
		case err != nil:
			return err
		case e.Failed != "":
			return fault.New(fault.NoQuorum, op, unknown, "%s; end this process", e.Failed)
		case e.Launcher != launcher:
			return errListenAgain
		case int64(e.Number) > last && at > 0:
			if is, err := j.become(ctx, e); is || err != nil {
				return err
			}
		}
		version = at
	}
}

// announce replaces this process's address in the store. The launcher takes each new version of the
// address as a request for the next epoch.
func (m *membership) announce(ctx context.Context, addr string) error {
	old, err := m.store.Get(ctx, store.ReadyKey)
	if err != nil {
		return err
	}
	ok, err := m.store.CompareAndSwap(ctx, store.ReadyKey, old.Version, []byte(addr))
	if err == nil && !ok {
		err = errors.New("store: got a second request for the next epoch from this process, want one at a time")
	}
	return err
}

// withdraw tells the launcher that this process no longer waits for the next epoch. Otherwise the
// launcher could form an epoch with it, in which the other ranks would wait for it. withdraw
// ignores an error: a launcher that does not answer in time is stopped or ending.
func (m *membership) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawLimit)
	defer cancel()
	m.announce(ctx, "")
}

// withdrawLimit bounds how long Join takes to withdraw after its context has ended.
const withdrawLimit = time.Second

// watch waits until the job's Epoch has another version, and returns the Epoch and its version.
// While there is no Epoch, the version is 0.
func (m *membership) watch(ctx context.Context, version uint64) (e store.Epoch, at uint64, err error) {
	entry, err := m.store.Watch(ctx, store.EpochKey, version)
	if err != nil {
		return e, 0, err
	}
	e, err = decodeEpoch(entry)
	return e, entry.Version, err
}

// decodeEpoch decodes the value of EpochKey. Without a value the Epoch is empty.
func decodeEpoch(entry store.Versioned) (e store.Epoch, err error) {
	if entry.Version == 0 {
		return e, nil
	}
	if err := json.Unmarshal(entry.Value, &e); err != nil {
		return e, fmt.Errorf("store: epoch: %w", err)
	}
	if len(e.Hosts) != len(e.Members) {
		return e, fmt.Errorf("store: epoch: got the hosts of %d ranks, want those of %d", len(e.Hosts), len(e.Members))
	}
	return e, nil
}

// become fills in this process's part in epoch e: rank, size, addresses and credentials. It returns
// false if this process is no member of e. Only a member of e has credentials for e.
func (j *Job) become(ctx context.Context, e store.Epoch) (bool, error) {
	entry, err := j.members.store.Get(ctx, store.CredentialsKey)
	if err != nil || entry.Version == 0 {
		return false, err
	}
	b, err := jobca.ParseBundle(entry.Value)
	if err != nil {
		return false, err
	}
	name := b.Credentials.Name()
	if name != jobca.NewName(j.Name, e.Number, name.Rank) || name.Rank >= len(e.Members) {
		return false, nil
	}
	j.Rank, j.Size, j.Incarnation = name.Rank, len(e.Members), e.Number
	j.StartLimit = e.StartLimit
	j.LocalRank, j.LocalSize = 0, 0
	for rank, host := range e.Hosts {
		if host == e.Hosts[j.Rank] {
			j.LocalSize++
			if rank < j.Rank {
				j.LocalRank++
			}
		}
	}
	j.Root = e.Root
	if len(j.Secret) == 0 { // the program has not set one
		j.Secret, j.credentials = b.Secret, b.Credentials
	}
	j.Exited = j.finder.exits(j.Rank, e.Members, true)
	j.members.mu.Lock()
	j.members.last = int64(e.Number)
	j.members.mu.Unlock()
	return true, nil
}

// Addresses returns texts such as "rank 2 listens at 10.0.0.3:41234 on node3" for the given ranks
// of j's epoch. It omits ranks whose address the launcher has not recorded.
func (j *Job) Addresses(ctx context.Context, ranks []int) (texts []string) {
	entry, err := j.members.store.Get(ctx, store.AddressesKey)
	if err != nil {
		return nil
	}
	addrs := strings.Split(string(entry.Value), "\n")
	for _, r := range ranks {
		if r < len(addrs)-1 { // the last one is empty or cut off
			texts = append(texts, fmt.Sprintf("rank %d listens at %s", r, addrs[r]))
		}
	}
	return texts
}

// AwaitBreak returns nil once the epoch of j can no longer start: a member has ended, or has asked
// for the next epoch. AwaitBreak fails if ctx ends or if the connection to the launcher fails.
func (j *Job) AwaitBreak(ctx context.Context) error {
	return j.await(ctx, func(e store.Epoch) bool { return e.Broken || e.Finished })
}

// AwaitChange returns nil once the next epoch would have other members: a member's process has
// failed, or a member or another process has asked for the next epoch. A member that has exited
// with 0 does not count, because the job is about to end. AwaitChange fails as AwaitBreak does.
func (j *Job) AwaitChange(ctx context.Context) error {
	return j.await(ctx, func(e store.Epoch) bool { return e.Broken || e.Waiting })
}

// await waits until the launcher has formed an epoch after j's, or until changed returns true for
// the launcher's record of j's epoch.
func (j *Job) await(ctx context.Context, changed func(store.Epoch) bool) error {
	for version := uint64(0); ; {
		e, at, err := j.members.watch(ctx, version)
		if err != nil {
			return j.storeError(ctx, "the launcher has recorded no change of the epoch of this process", err)
		}
		if e.Number != j.Incarnation || changed(e) {
			return nil
		}
		version = at
	}
}

// storeError returns the error of a wait for the launcher. The parameter missing says what the
// launcher has not done if ctx has ended.
func (j *Job) storeError(ctx context.Context, missing string, err error) error {
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		return err
	case ctx.Err() != nil:
		return fault.New(fault.ContextKind(ctx.Err()), op, unknown, "%s: %w", missing, context.Cause(ctx))
	case errors.Is(err, store.ErrClosed):
		return fault.New(fault.NoQuorum, op, unknown, "the launcher has ended, and only the launcher decides who goes on; end this process")
	}
	return fault.New(fault.Refused, op, unknown, "record of the launcher: %w", err)
}

// Close closes the listener that Join has opened, unless Listen has returned it. It is needed for a
// job of one rank, which does not call Listen.
func (j *Job) Close() {
	if l := j.listening(); l != nil {
		l.Close()
	}
}

// listening returns the listener that Join has opened, once, or nil.
func (j *Job) listening() net.Listener {
	l := j.listener
	j.listener = nil
	return l
}

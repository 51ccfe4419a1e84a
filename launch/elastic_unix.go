//go:build unix

package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/internal/route"
	"github.com/tutti-go/tutti/internal/store"
	"github.com/tutti-go/tutti/launch/internal/placement"
)

// An epochs carries out what a membership decides, and serves the record of the job's ranks to each
// process. The goroutine in Run owns it. In a job whose ranks do not change, the *epochs is nil;
// methods that say so may be called on nil. The other goroutines of an epochs:
//
//	goroutine      one per  does                                  ends with
//	Serve          process  answers the process's requests        the process
//	awaitRequests  process  sends its requests for an epoch       the process
//	discover       job      runs the discovery script             close
type epochs struct {
	*membership
	record  *store.Memory // what all processes read
	written store.Epoch   // the Epoch in record

	launcher string // Epoch.Launcher
	asked    chan question
	found    []placement.Host      // the hosts that the job may use now, and their slots
	hosts    chan []placement.Host // the hosts that the discovery script has listed
	ctx      context.Context       // ends with close
	end      context.CancelFunc
	work     sync.WaitGroup
}

// A question is the request of a process for the next epoch.
type question struct {
	rank *rank
	text string // what the process has written to ReadyKey
}

// A link is the launcher's end of the connection to one process.
type link struct {
	own *store.Memory   // the process's own part of the record
	ctx context.Context // ends with close; then the connection and its goroutines end, too
	end context.CancelFunc
}

// close ends the connection. It may be called on nil.
func (l *link) close() {
	if l != nil {
		l.end()
	}
}

// prepareEpochs sets r.epochs if the job's ranks may change. With a discovery script, the first run
// of the script says how many ranks begin, and on which hosts.
func (r *run) prepareEpochs() error {
	e := r.job.Elastic
	if e == nil {
		return nil
	}
	s := &epochs{
		membership: newMembership(e), record: store.NewMemory(), asked: make(chan question), hosts: make(chan []placement.Host),
	}
	if e.Discovery != "" {
		var err error
		if s.found, err = r.discover(context.Background()); err != nil {
			return fmt.Errorf("with --host-discovery-script: %w", err)
		}
		app, j := r.job.Apps[0], *r.job
		app.Ranks = min(slotsOf(s.found), e.Max)
		if slices.ContainsFunc(s.found, isElsewhere) {
			j.Hosts = s.found
		}
		r.apps, r.job = []App{app}, &j
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	r.epochs, r.info.store = s, true
	return nil
}

// isElsewhere reports whether h is not the host of this process.
func isElsewhere(h placement.Host) bool { return !isHere(h.Name) }

// slotsOf adds up the slots of hosts.
func slotsOf(hosts []placement.Host) (n int) {
	for _, h := range hosts {
		n += h.Slots
	}
	return n
}

// placeSlots makes a slot for each rank that begins, on the host of the rank. The parameter hosts
// holds the hosts of the job. A host without a number of slots must have its processors filled in.
// It is not known yet whether the hosts can be reached.
func (r *run) placeSlots(hosts []placement.Host) error {
	s, at, placed := r.epochs, make([]int, len(r.info.places)), make([]int, len(r.hosts))
	for slot, p := range r.info.places {
		at[slot] = slices.Index(r.hosts, r.others.byIndex[p.Host])
		placed[at[slot]]++
	}
	if s.begin(at); s.min > s.max {
		return fmt.Errorf("with --min-np: got %d, want at most %d, the ranks of the job", s.min, s.max)
	}
	if len(r.others.hosts) > 0 {
		s.launcher = towards(r.ownAddress())
	}
	if s.found != nil {
		return nil // by the discovery script
	}
	for _, h := range hosts {
		// A host may begin with more ranks than it has slots. It then gets a slot for each rank. A
		// host without a number of slots has one slot per core.
		if to := r.hostNumber(h.Name); to >= 0 {
			h.Slots = max(h.SlotsUnder(&r.job.Placement), placed[to])
			s.found = append(s.found, h)
		}
	}
	return nil
}

// towards returns an address for route.To, which finds the local address of the route to the host
// with this name. The port is a dummy: route.To needs one, but sends nothing.
func towards(name string) string { return rootAddress(name, route.Port) }

// hostNumber returns the index of the host with this name in r.hosts, or -1 if there is none.
func (r *run) hostNumber(name string) int {
	if isHere(name) {
		return 0
	}
	return slices.IndexFunc(r.hosts, func(h host) bool { return h != r.local && h.name() == name })
}

// updateSlots tells the membership how many slots each host has. A host that cannot be reached now
// has no slots. If there is a discovery script, updateSlots also begins to connect to the hosts
// that the script names for the first time, and to lost hosts. It connects to a lost host only
// after a pause, which is as long as the pause before a start in a slot that has failed as often.
func (r *run) updateSlots() {
	s := r.epochs
	slots := make([]int, len(r.hosts))
	for _, f := range s.found {
		i := r.hostNumber(f.Name)
		if i == 0 || i > 0 && r.others.hosts[i-1].isUp() {
			slots[i] = f.Slots
		}
		if i == 0 || s.stopped || s.finishing || r.job.Elastic.Discovery == "" {
			continue
		}
		if i < 0 {
			r.connectLater(f.Name, 0)
			slots = append(slots, 0)
		} else if h := r.others.hosts[i-1]; h.lost != nil {
			r.connectLater(f.Name, h.failures+1)
		}
	}
	s.available(slots)
}

// close ends all connections and goroutines. It may be called on nil.
func (s *epochs) close() {
	if s != nil {
		s.end()
		s.work.Wait()
	}
}

// halt makes the membership start no more processes, because the job ends. It may be called on nil.
func (s *epochs) halt() {
	if s != nil {
		s.stop()
	}
}

// requests returns the channel of questions, or nil if s is nil.
func (s *epochs) requests() <-chan question {
	if s == nil {
		return nil
	}
	return s.asked
}

// discovered returns the channel on which the hosts arrive whenever they or their slots have changed,
// or nil if s is nil.
func (s *epochs) discovered() <-chan []placement.Host {
	if s == nil {
		return nil
	}
	return s.hosts
}

// next returns the time at which advance must be called, if no event comes before. It may be called
// on nil.
func (s *epochs) next(now time.Duration) time.Duration {
	if s == nil {
		return never
	}
	return s.wakeAt(now)
}

// connect makes the connection over which a process that is about to start reads the record and
// asks for epochs.
func (s *epochs) connect(k *rank) error {
	conn, err := k.host.open(k.process, storeFD)
	if err != nil {
		return err
	}
	l := &link{own: store.NewMemory()}
	l.ctx, l.end = context.WithCancel(s.ctx)
	context.AfterFunc(l.ctx, func() { conn.Close() })
	k.link = l
	s.work.Go(func() { store.Serve(conn, store.RankView{Shared: s.record, Own: l.own}) })
	s.work.Go(func() { s.awaitRequests(l, k) })
	return nil
}

// socketPair returns the two ends of a connection: this process's, and the one that a child
// inherits.
func socketPair(name string) (net.Conn, *os.File, error) {
	syscall.ForkLock.RLock() // Darwin has no SOCK_CLOEXEC
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// awaitRequests passes each request of a process for the next epoch to the goroutine in Run. It
// returns when the connection of the process ends.
func (s *epochs) awaitRequests(l *link, k *rank) {
	for version := uint64(0); ; {
		e, err := l.own.Watch(l.ctx, store.ReadyKey, version)
		if err != nil {
			return
		}
		version = e.Version
		select {
		case s.asked <- question{k, string(e.Value)}:
		case <-l.ctx.Done():
			return
		}
	}
}

// maxAddr bounds the address of a listener: a host name of 255 bytes and a port.
const maxAddr = 255 + len(":65535")

// asked handles a message of a process, which asks for the next epoch or withdraws its request. It
// ignores a request whose address is too long. It also ignores a request of a process that has not
// learned yet that the job has a second host: that process asks again.
func (r *run) asked(q question) {
	addr, launcher, _ := strings.Cut(q.text, " ")
	switch {
	case len(addr) > maxAddr:
		return
	case addr == "":
		r.epochs.withdrawn(q.rank.process, r.now())
		return
	case launcher != r.epochs.launcher:
		return
	}
	r.detail("rank %s asks for the next epoch", q.rank.label())
	r.epochs.ready(q.rank.process, addr, r.now())
}

// listenOutside is called when the job gets a second host. Ranks there cannot reach a listener on
// loopback, so processes that listen on loopback must ask again.
func (r *run) listenOutside(own string) {
	s := r.epochs
	s.launcher = towards(own)
	for id, p := range s.processes {
		if p.ready {
			s.withdrawn(id, r.now())
		}
	}
}

// advance carries out what the membership has decided, and writes it to the record.
func (r *run) advance() {
	s := r.epochs
	if s == nil {
		return
	}
	if r.policy.phase != running || r.endSignal != 0 {
		s.stop()
	}
	if r.others.pending == 0 { // the ranks that begin have been started
		for _, at := range s.starts(r.now()) {
			r.startLater(at)
		}
	}
	for _, id := range s.absent(r.now()) {
		r.note("rank %s (process %d) has called neither Init nor Rejoin for %v, and others wait for it", r.ranks[id].label(), r.ranks[id].pid, stallAfter)
	}
	for _, id := range s.overdue(r.now()) {
		if !s.processes[id].dismissed {
			r.note("rank %s (process %d) has called neither Init nor Rejoin within %v (--elastic-timeout), while others waited for it; the rank is killed", r.ranks[id].label(), r.ranks[id].pid, s.waitLimit)
		}
		r.ranks[id].host.signal(id, syscall.SIGKILL)
	}
	for _, id := range s.surplus(r.now()) {
		if !s.finishing {
			at := s.slots[s.processes[id].slot].host
			r.note("rank %s (process %d) gets TERM, because %s has only %d slots now", r.ranks[id].label(), r.ranks[id].pid, cmp.Or(r.hosts[at].name(), "this host"), s.usable[at])
		}
		r.ranks[id].replaced = true
		r.ranks[id].host.signal(id, syscall.SIGTERM)
	}
	if members := s.form(); members != nil {
		if err := r.begin(members); err != nil {
			s.failed = err.Error()
		}
	}
	if s.written.Failed == "" && s.failure(r.now()) != "" {
		r.note("the job ends: %s", s.failed)
		if !s.finishing {
			r.failed = s.failed
		}
		r.policy.rankAbsent(r.now())
	}
	if !s.isDeserted() {
		r.policy.remaining(r.now(), s.alive())
	}
	now := s.written
	now.Launcher = s.launcher
	now.Broken, now.Finished, now.Waiting, now.Failed = s.broken, s.left, s.epoch != noEpoch && s.waiting(), s.failed
	if err := s.write(now); err != nil {
		s.failed = err.Error()
	}
}

// startLater starts a process in a slot while the job runs.
func (r *run) startLater(at int) {
	like, before := r.ranks[0], (*rank)(nil)
	for _, k := range r.ranks {
		if k.slot == at {
			like, before = k, k
		}
	}
	k := r.addRank(like.app, like.app.Args[0], at)
	if before != nil {
		k.restart, before.replaced = before.restart+1, true
		r.note("%s; it is started again as [%s]%s", before.describe(), k.label(), onHost(k.host))
	}
	for _, h := range r.hosts {
		h.grow(len(r.ranks))
	}
	err := r.findProgram(k)
	if err == nil {
		err = r.start(k)
	}
	if err != nil {
		r.note("rank %s: cannot start %v", k.label(), err)
		k.ended, k.status, k.endedAt = true, syscall.WaitStatus(err.code<<8), r.now()
		r.epochs.started(k.process, at, r.now())
		r.epochs.ended(k.process, true, r.now())
	}
}

// exited notes the end of a process. The process group may still have members.
func (s *epochs) exited(k *rank, now time.Duration) {
	k.link.close()
	k.link = nil // releases the private key in the link
	s.ended(k.process, k.status != 0, now)
}

// begin gives the members of an epoch their credentials, and then writes the epoch to the record.
// Each epoch has a secret and certificates of its own, so a process that is no member cannot take
// part. If begin fails, no member knows of the epoch.
func (r *run) begin(members []*member) error {
	s, secret := r.epochs, random(16)
	e := store.Epoch{Number: uint32(s.epoch), Root: members[0].addr, Launcher: s.launcher, StartLimit: s.waitLimit}
	var addrs []byte
	for rank, m := range members {
		k := r.ranks[m.id]
		k.id = rank
		e.Members, e.Hosts = append(e.Members, k.process), append(e.Hosts, s.slots[m.slot].host)
		addrs = fmt.Appendf(addrs, "%s%s\n", m.addr, onHost(k.host))
		text, err := r.bundle(secret, rank, e.Number)
		if err == nil {
			err = swap(k.link.own, store.CredentialsKey, text)
		}
		if err != nil {
			return fmt.Errorf("certificate for rank %s: %w", k.label(), err)
		}
	}
	// In a large job, the text is cut off after as many ranks as fit into a value.
	if err := swap(s.record, store.AddressesKey, addrs[:min(len(addrs), store.MaxValue)]); err != nil {
		return err
	}
	r.detail("epoch %d has %d ranks; rank 0 is [%s], process %d", e.Number, len(members), r.ranks[members[0].id].label(), r.ranks[members[0].id].pid)
	return s.write(e)
}

// write replaces the Epoch in the record, if e differs from it.
func (s *epochs) write(e store.Epoch) error {
	if reflect.DeepEqual(e, s.written) {
		return nil
	}
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // an Epoch has no field that cannot be encoded
	}
	if err := swap(s.record, store.EpochKey, text); err != nil {
		return err
	}
	s.written = e
	return nil
}

// swap replaces a value that only this goroutine changes. It returns an error if another writer has
// changed the value meanwhile.
func swap(m *store.Memory, key string, value []byte) error {
	old, err := m.Get(context.Background(), key)
	if err != nil {
		return err
	}
	ok, err := m.CompareAndSwap(context.Background(), key, old.Version, value)
	if err == nil && !ok {
		err = fmt.Errorf("record: key %s: got a change by another writer, want none", key)
	}
	return err
}

// label names a process in tags of output. It is the slot of the process, followed by the number of
// processes that ran in this slot before, if any.
func (k *rank) label() string {
	if k.restart == 0 {
		return fmt.Sprint(k.slot)
	}
	return fmt.Sprintf("%d.%d", k.slot, k.restart)
}

// The discovery script runs once per discoverEvery.
const (
	discoverEvery = time.Second
	discoverLimit = 10 * time.Second // the time limit of one run
)

// maxDiscovery bounds what is read of the output of a discovery script.
const maxDiscovery = 64 << 10

// startDiscovery runs the discovery script once per discoverEvery, if there is one.
func (r *run) startDiscovery() {
	s := r.epochs
	if s == nil || r.job.Elastic.Discovery == "" {
		return
	}
	s.work.Go(func() {
		tick := time.NewTicker(discoverEvery)
		defer tick.Stop()
		last, failed := s.found, ""
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
			}
			found, err := r.discover(s.ctx)
			switch {
			case s.ctx.Err() != nil:
				return
			case err != nil:
				if text := err.Error(); text != failed {
					failed = text
					r.note("host discovery: %s; hosts and slots stay as they were", text)
				}
				continue
			}
			if failed = ""; reflect.DeepEqual(found, last) {
				continue
			}
			select {
			case s.hosts <- found:
				last = found
			case <-s.ctx.Done():
				return
			}
		}
	})
}

// discover runs the discovery script, and returns the hosts that it names. Fewer slots than the
// minimum number of ranks are an error, because a failing script often prints nothing and exits
// with 0.
func (r *run) discover(ctx context.Context) (hosts []placement.Host, err error) {
	ctx, cancel := context.WithTimeout(ctx, discoverLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", r.job.Elastic.Discovery)
	cmd.Env, cmd.WaitDelay = r.base, killAfter
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out limitedBuffer
	cmd.Stdout = &out
	// ErrWaitDelay means that the script has exited with 0, and that a helper of the script still
	// has the pipe open.
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, fmt.Errorf("%s: %w", r.job.Elastic.Discovery, err)
	}
	hosts, err = parseSlots(strings.TrimSpace(string(out)))
	if slots, least := slotsOf(hosts), r.job.Elastic.Min; err == nil && slots < least {
		err = fmt.Errorf("slots: got %d, want at least %d (--min-np)", slots, least)
	}
	return hosts, err
}

// A limitedBuffer keeps what is written to it, and refuses more than maxDiscovery bytes.
type limitedBuffer []byte

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if len(*b)+len(p) > maxDiscovery {
		return 0, fmt.Errorf("output: got %d bytes or more, want at most %d", len(*b)+len(p), maxDiscovery)
	}
	*b = append(*b, p...)
	return len(p), nil
}

// parseSlots reads the output of a discovery script. A line is "host:slots", or "host" for one slot.
func parseSlots(text string) (hosts []placement.Host, err error) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		more, err := placement.ParseList(line)
		if err != nil {
			return nil, err
		}
		for _, h := range more {
			if h.Slots == 0 {
				return nil, fmt.Errorf("host %q: got no number of slots, want one", h.Name)
			}
		}
		hosts = append(hosts, more...)
	}
	if hosts = placement.Merge(hosts, isHere); len(hosts) > placement.MaxHosts {
		return nil, fmt.Errorf("got %d hosts, want at most %d", len(hosts), placement.MaxHosts)
	}
	return hosts, nil
}

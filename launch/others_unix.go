//go:build unix

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/launch/internal/placement"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// others are the other hosts of a job. The goroutine in Run owns the fields.
type others struct {
	hosts   []*remoteHost
	byIndex map[int]host   // the hosts that have ranks, also this one, by their index in Job.Hosts
	pending int            // how many have not answered Prepare; no rank starts before all have
	parts   int            // how many parts of the job other hosts have had
	events  chan hostEvent // nil without other hosts
	ctx     context.Context
	end     context.CancelFunc // ends all connections
	work    sync.WaitGroup     // one goroutine for each connection
	closing atomic.Bool        // the connections are being closed, and what is printed there has no use

	surveyed map[string]*remote.Link // by the host's name: what survey has left for connect; nil if nothing

	lost      map[string]bool // the names of hosts that could not be reached, or cannot be any more; see addLost
	unreached bool            // no rank was started, because a host could not be reached
}

// prepareHosts makes the hosts of the job, and binds the listener if rank 0 runs on this host. The
// port is bound here and inherited by rank 0, so that no other process can take it before rank 0
// runs. With epochs, each rank has its own listener, and the record names rank 0's.
// The parameter hosts are those of survey.
func (r *run) prepareHosts(hosts []placement.Host) (err error) {
	r.local = newLocalHost(r.info.job+".0", r.info.size)
	r.hosts = []host{r.local}
	r.others.byIndex = make(map[int]host)
	alone := true
	var needed []int // in Job.Hosts
	for _, p := range r.info.places {
		alone = alone && p.Host == r.info.places[0].Host
		needed = append(needed, p.Host)
	}
	// Survey has connected to all hosts, and each may be on the way to others. Elastic jobs may start
	// ranks on any host later.
	if r.job.Placement.NeedsCPUs(r.job.Hosts) || r.epochs != nil && r.job.Elastic.Restarts > 0 {
		for i := range r.job.Hosts {
			needed = append(needed, i)
		}
	}
	for _, i := range needed {
		if r.others.byIndex[i] != nil {
			continue
		}
		name := "localhost"
		if r.job.Hosts != nil {
			name = r.job.Hosts[i].Name
		}
		if isHere(name) {
			r.others.byIndex[i] = r.local
			continue
		}
		h := r.newRemoteHost(name)
		r.others.byIndex[i] = h
		r.hosts, r.others.hosts = append(r.hosts, h), append(r.others.hosts, h)
	}
	if len(r.others.hosts) > 0 {
		r.local.hostName = hostname()
	}
	if r.epochs != nil {
		return r.placeSlots(hosts)
	}
	if h, elsewhere := r.hostOf(0).(*remoteHost); elsewhere {
		h.first.Root, h.first.Alone, h.first.Ports = true, alone, r.rootPorts()
		return nil
	}
	var addr netip.AddrPort
	if r.local.listener, addr, err = listen(alone, r.rootPorts()); err == nil {
		r.info.root = addr.String()
		if !alone {
			r.info.root = rootAddress(r.ownAddress(), int(addr.Port()))
		}
	}
	return err
}

// newRemoteHost returns a host that is not connected to. Each connection has its own part of the job,
// because processes of an earlier one may still be there.
func (r *run) newRemoteHost(name string) *remoteHost {
	r.others.parts++
	return &remoteHost{
		hostName: name, inits: make(map[int]initState),
		first: remote.Prepare{Job: fmt.Sprintf("%s.%d", r.info.job, r.others.parts)},
	}
}

// ownAddress returns the name of this host, or, if the name is of no use to other hosts, the address
// from which this host reaches one of them. /etc/hosts often gives a host's own name a loopback
// address.
func (r *run) ownAddress() string { return addressFor(r.others.hosts) }

// addressFor is ownAddress for the given hosts.
func addressFor(hosts []*remoteHost) string {
	own := hostname()
	if own != "" && isKnown(context.Background(), own) {
		return own
	}
	return cmp.Or(addressTowards(hosts), own)
}

// addressTowards returns the address from which this host reaches another host, or "". It uses the
// first host whose name it can look up, because ssh's configuration may define names that nothing
// else knows.
func addressTowards(hosts []*remoteHost) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*lookupLimit)
	defer cancel()
	for _, h := range hosts {
		// A UDP socket sends nothing when it is connected.
		dialer := net.Dialer{Timeout: lookupLimit}
		if c, err := dialer.DialContext(ctx, "udp", net.JoinHostPort(withoutUser(h.hostName), "9")); err == nil {
			defer c.Close()
			return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().String()
		}
	}
	return ""
}

// rootAddress returns the address of a listener on the host with this name.
func rootAddress(name string, port int) string {
	return net.JoinHostPort(withoutUser(name), strconv.Itoa(port))
}

// hostOf returns the host of the rank that begins in a slot.
func (r *run) hostOf(slot int) host {
	if r.epochs != nil {
		return r.hosts[r.epochs.slots[slot].host]
	}
	return r.others.byIndex[r.info.places[slot].Host]
}

// nodes returns the number of each rank's host.
func (r *run) nodes() []int {
	nodes := make([]int, r.info.size)
	for rank, p := range r.info.places {
		nodes[rank] = p.Node
	}
	return nodes
}

// onHost returns text that names the host, if the job has several.
func onHost(h host) string {
	if h == nil || h.name() == "" {
		return ""
	}
	return " on " + h.name()
}

// connect begins to connect to the other hosts. Their answers are events.
func (r *run) connect() {
	o := &r.others
	o.begin()
	o.pending = len(o.hosts)
	var names []string
	hosts := slices.Clone(o.hosts) // others may come while the job runs
	for _, h := range hosts {
		names = append(names, h.hostName)
	}
	r.showProgress()
	serve := func(i int, l *remote.Link, err error) {
		o.work.Go(func() { hosts[i].serve(o.ctx, l, err, o.events, r.local.over) })
	}
	if o.surveyed != nil {
		for i, name := range names {
			serve(i, o.surveyed[name], nil)
		}
		return
	}
	o.work.Go(func() {
		limited, cancel := limitConnect(o.ctx)
		defer cancel()
		r.connectAll(limited, names, serve)
	})
}

// begin makes what all connections share. It may be called again.
func (o *others) begin() {
	if o.end == nil {
		o.ctx, o.end = context.WithCancel(context.Background())
		o.events = make(chan hostEvent)
	}
}

// connectLater begins to connect to a host while the job runs, after a pause that grows with the
// number of the host's failures. The host's answer is an event. A host of the same name is lost, and
// is replaced.
func (r *run) connectLater(name string, failures int) {
	o, h := &r.others, r.newRemoteHost(name)
	h.failures = failures
	if i := r.hostNumber(name); i >= 0 {
		r.hosts[i], o.hosts[i-1] = h, h
	} else {
		r.hosts, o.hosts = append(r.hosts, h), append(o.hosts, h)
	}
	r.local.hostName, r.policy.survival = hostname(), lostLimit
	o.begin()
	pause := r.epochs.pauseAfter(failures)
	o.work.Go(func() {
		select {
		case <-time.After(pause):
		case <-o.ctx.Done():
			return
		}
		limited, cancel := limitConnect(o.ctx)
		defer cancel()
		h.own = addressFor([]*remoteHost{h})
		r.connectAll(limited, []string{name}, func(_ int, l *remote.Link, err error) {
			o.work.Go(func() { h.serve(o.ctx, l, err, o.events, r.local.over) })
		})
	})
}

// limitConnect bounds the time until all hosts have answered.
func limitConnect(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, connectLimit, fmt.Errorf("got none within %v", connectLimit))
}

// connectAll connects to other hosts, as remote.ConnectAll does.
func (r *run) connectAll(ctx context.Context, names []string, report func(i int, l *remote.Link, err error)) {
	starter := r.job.starter(func(host, line string) {
		if !r.others.closing.Load() {
			r.note("%s: %s", host, line)
		}
	})
	remote.ConnectAll(ctx, starter, cmp.Or(r.job.FanOut, remote.DefaultFanOut), names, report)
}

// survey returns the hosts of the job with their processors, if the places of ranks depend on
// these. It connects to the other hosts for that, until ctx ends or the job's timeout has passed, and
// leaves the connections for connect. No rank runs yet, so a signal may simply end this process, and
// with it the connections.
func (r *run) survey(ctx context.Context) ([]placement.Host, error) {
	hosts := slices.Clone(r.job.Hosts)
	if !r.job.Placement.NeedsCPUs(hosts) {
		return hosts, nil
	}
	var names []string
	var at []int
	for i := range hosts {
		if isHere(hosts[i].Name) {
			hosts[i].CPUs = cpu.Topology()
		} else {
			names, at = append(names, hosts[i].Name), append(at, i)
		}
	}
	limited, cancel := limitConnect(ctx)
	defer cancel()
	if r.job.Timeout > 0 {
		late := fmt.Errorf("got none within %v (--timeout)", r.job.Timeout)
		limited, cancel = context.WithDeadlineCause(limited, r.startedAt.Add(r.job.Timeout), late)
		defer cancel()
	}
	links, errs := make([]*remote.Link, len(at)), make([]error, len(at))
	r.connectAll(limited, names, func(i int, l *remote.Link, err error) {
		if links[i], errs[i] = l, err; err == nil {
			hosts[at[i]].CPUs, errs[i] = processorsOf(limited, l)
		}
	})
	r.others.surveyed = make(map[string]*remote.Link)
	for i, l := range links {
		if l != nil {
			r.others.surveyed[names[i]] = l
		}
	}
	err := cmp.Or(errs...)
	if err == nil {
		return hosts, nil
	}
	for i := range errs {
		if errs[i] != nil {
			r.others.addLost(names[i], errs[i])
		}
	}
	r.others.unreached = true
	code := exitNotRunning
	switch {
	case ctx.Err() != nil:
		code = 128 + int(syscall.SIGTERM)
	case r.job.Timeout > 0 && r.now() >= r.job.Timeout:
		code = exitTimeout
	}
	return nil, &startError{code, "ranks on " + err.Error()}
}

// processorsOf asks a host for its processors.
func processorsOf(ctx context.Context, l *remote.Link) ([]cpu.Thread, error) {
	l.Send(&remote.Command{Prepare: new(remote.Prepare)})
	for {
		select {
		case e, ok := <-l.Events():
			if !ok {
				return nil, l.Err()
			}
			if e.Prepared != nil {
				return e.Prepared.CPUs, nil
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", l.Name(), context.Cause(ctx))
		}
	}
}

// disconnect ends all connections, and waits until they have ended.
func (r *run) disconnect() {
	r.others.closing.Store(true)
	if r.others.end != nil {
		r.others.end()
		r.others.work.Wait()
		r.err.eraseProgress()
	}
	var closing sync.WaitGroup
	for _, l := range r.others.surveyed {
		closing.Go(func() { l.Close() })
	}
	closing.Wait()
}

// fromHost handles an input from another host.
func (r *run) fromHost(e hostEvent) {
	h := e.host
	switch {
	case h.lost != nil: // giveUp has closed the Link
	case e.err != nil:
		r.lost(h, e.err)
	case e.link != nil:
		if r.epochs != nil && r.epochs.launcher == "" {
			r.listenOutside(h.own)
		}
		h.link, h.first.Size = e.link, len(r.ranks)
		r.sendPrepare(h)
	case e.event.Prepared != nil:
		h.answered(r.now())
		r.prepared(h, e.event.Prepared)
	case e.event.Started != nil:
		h.answered(r.now())
		r.started(r.ranks[e.event.Started.Process], e.event.Started.PID)
	case e.event.StartFailed != nil:
		h.answered(r.now())
		r.startFailedOn(h, e.event.StartFailed)
	case e.event.Ended != nil:
		ended := e.event.Ended
		r.exited(exit{ended.Process, syscall.WaitStatus(ended.Status), ended.Joined})
	case e.event.Note != nil:
		r.note("%s: %s", h.name(), e.event.Note.Text)
	default:
		h.handle(e.event)
	}
}

// prepared starts the ranks once all hosts have answered. A host that comes later gets ranks at once.
func (r *run) prepared(h *remoteHost, p *remote.Prepared) {
	h.prepared, h.cpus = p.Failed == "", p.CPUs
	if r.others.pending == 0 {
		if !h.prepared {
			r.giveUp(h, errors.New(p.Failed))
			return
		}
		delete(r.others.lost, h.hostName)
		r.updateSlots()
		return
	}
	if p.Failed != "" {
		r.startErr = &startError{exitNotRunning, "ranks on " + h.name() + ": " + p.Failed}
		return
	}
	if h.first.Root {
		name := h.name()
		switch {
		case h.first.Alone:
			name = p.Addresses[0]
		// Only ssh's configuration knows the name. The other ranks use the address that ssh has used.
		case !h.known && p.Reached != "":
			name = p.Reached
		}
		r.info.root = rootAddress(name, p.Port)
	}
	r.hostAnswered()
}

// hostAnswered notes that a host of the start is ready, or is not waited for any more. With the last
// one the ranks start.
func (r *run) hostAnswered() {
	r.others.pending--
	r.showProgress()
	if r.others.pending == 0 {
		r.omitLost()
		r.startAll()
	}
}

// canOmit reports whether an elastic job can begin without its hosts that are lost.
func (r *run) canOmit() bool {
	n := 0
	for _, k := range r.ranks {
		if !onLost(k) {
			n++
		}
	}
	return r.epochs != nil && n > 0 && n >= r.epochs.least()
}

// onLost reports whether the host of a rank is lost.
func onLost(k *rank) bool {
	h, elsewhere := k.host.(*remoteHost)
	return elsewhere && h.lost != nil
}

// omitLost removes the ranks of lost hosts before the first one starts. Their slots get processes when
// the hosts can be reached, or move.
func (r *run) omitLost() {
	if !slices.ContainsFunc(r.ranks, onLost) {
		return
	}
	r.ranks = slices.DeleteFunc(r.ranks, onLost)
	for i, k := range r.ranks {
		k.process = i
	}
	r.info.size = len(r.ranks)
	r.updateSlots()
}

// showProgress shows how many of the other hosts have answered.
func (r *run) showProgress() {
	if n := len(r.others.hosts); !r.job.Quiet {
		r.err.showProgress(n-r.others.pending, n)
	}
}

// startFailedOn handles that a rank could not be started on another host.
func (r *run) startFailedOn(h *remoteHost, f *remote.StartFailed) {
	k, err := r.ranks[f.Process], &startError{f.Code, f.Text + " on " + h.name()}
	k.starting, k.ended, k.status, k.endedAt = false, true, syscall.WaitStatus(f.Code<<8), r.now()
	if r.epochs == nil {
		r.policy.exited(r.now(), false)
	} else {
		r.epochs.exited(k, r.now())
	}
	switch {
	case k.process >= r.info.size:
		r.note("rank %s: cannot start %v", k.label(), err)
	case r.startErr == nil:
		r.notStarted(err)
	}
}

// giveUp ends the connection to a host that can run no ranks.
func (r *run) giveUp(h *remoteHost, err error) {
	r.others.work.Go(func() { h.link.Close() })
	r.lost(h, fmt.Errorf("%s: %w", h.name(), err))
}

// giveUpOverdue gives up the hosts that do not answer in time.
func (r *run) giveUpOverdue() {
	for _, h := range r.others.hosts {
		if r.now() >= h.overdueAt() {
			r.giveUp(h, errors.New("it sends heartbeats, but has not answered a command to prepare or to start a rank in time; look for a file system there that hangs"))
		}
	}
}

// overdueAt returns the first time at which giveUpOverdue must be called, or never.
func (o *others) overdueAt() time.Duration {
	at := never
	for _, h := range o.hosts {
		at = min(at, h.overdueAt())
	}
	return at
}

// lost handles that another host cannot be reached, or cannot be reached any more. Its ranks have
// failed then. Whether they still run is unknown. A host that hears nothing ends them by itself.
func (r *run) lost(h *remoteHost, err error) {
	h.lost = err
	r.others.addLost(h.hostName, err)
	if r.others.pending > 0 {
		// A host on the way is lost, too, and says why. It may have been omitted.
		switch why := wayTo(err) == ""; {
		case r.canOmit():
			if why {
				r.note("host %v; the job begins without it", err)
			}
			if !h.prepared { // else it has been counted
				r.hostAnswered()
			}
		case r.startErr == nil && (why || r.epochs != nil):
			r.others.unreached = true
			r.startErr = &startError{exitNotRunning, "ranks on " + err.Error()}
		}
		return
	}
	r.note("host %v", err)
	for _, k := range r.ranks {
		if k.host == h && !k.ended && (k.starting || k.pid != 0) {
			k.starting, k.lost = false, err
			r.exited(exit{process: k.process, status: statusUnknown})
			k.killed = false // what has ended it is unknown
		}
	}
	if r.epochs != nil {
		r.updateSlots()
	}
}

// addLost notes that a host is lost, unless it may be well and only a host on the way to it is lost.
func (o *others) addLost(name string, err error) {
	if o.lost == nil {
		o.lost = make(map[string]bool)
	}
	if wayTo(err) == "" {
		o.lost[name] = true
	}
}

// wayTo returns the host that was on the way to a host, and whose loss is the only reason for the
// error. It returns "" if the reason is another one.
func wayTo(err error) string {
	if through := new(remote.ThroughError); errors.As(err, &through) {
		return through.Host
	}
	return ""
}

// pauseOthers tells the other hosts that this process is about to be silent. It handles what comes
// from them meanwhile, because their answers may come after it.
func (r *run) pauseOthers() { r.onLinks((*remote.Link).Pause) }

// resumeOthers ends pauseOthers. The hosts get time to answer, because this process may have been
// stopped for long.
func (r *run) resumeOthers() {
	r.onLinks((*remote.Link).Resume)
	for _, h := range r.others.hosts {
		h.until = max(h.until, r.now()+answerLimit)
	}
}

// onLinks calls f for all Links. It handles what comes from other hosts until all calls have returned.
func (r *run) onLinks(f func(*remote.Link)) {
	var calls sync.WaitGroup
	for _, h := range r.others.hosts {
		if h.link != nil {
			calls.Go(func() { f(h.link) })
		}
	}
	done := make(chan struct{})
	go func() {
		calls.Wait()
		close(done)
	}()
	for {
		select {
		case e := <-r.others.events:
			r.fromHost(e)
		case <-done:
			return
		}
	}
}

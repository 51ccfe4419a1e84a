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
	"github.com/tutti-go/tutti/internal/route"
	"github.com/tutti-go/tutti/launch/internal/placement"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// An others holds the other hosts of a job. The goroutine in Run owns the fields.
type others struct {
	hosts   []*remoteHost
	byIndex map[int]host   // the hosts that have ranks, including this host, by their index in Job.Hosts
	pending int            // how many hosts have not answered Prepare; no rank starts before it is 0
	parts   int            // the number in the last job name that newRemoteHost has assigned
	events  chan hostEvent // nil without other hosts
	ctx     context.Context
	end     context.CancelFunc // ends all connections
	work    sync.WaitGroup     // one goroutine for each connection
	closing atomic.Bool        // connections are being closed, so lines that other hosts print are dropped

	surveyed map[string]*remote.Link // the connections that survey has made, which connect uses; by host name

	lost      map[string]bool // the names of hosts that could not be reached, or have been lost; see addLost
	unreached bool            // no rank was started, because a host could not be reached
}

// prepareHosts makes the hosts of the job, and binds the listener if rank 0 runs on this host. Rank
// 0 inherits the bound listener, so that no other process can take the port before rank 0 runs.
// With epochs, each rank binds its own listener, and the record has the address of rank 0's. The
// parameter hosts is the result of survey.
func (r *run) prepareHosts(hosts []placement.Host) error {
	r.local = newLocalHost(r.info.job+".0", r.info.size)
	r.hosts = []host{r.local}
	r.addHosts()
	if len(r.others.hosts) > 0 {
		r.local.hostName = hostname()
	}
	if r.epochs != nil {
		return r.placeSlots(hosts)
	}
	return r.bindRoot()
}

// addHosts makes a host for each host of the job that has ranks, or that needs a connection
// although it has no ranks.
func (r *run) addHosts() {
	r.others.byIndex = make(map[int]host)
	var needed []int // in Job.Hosts
	for _, p := range r.info.places {
		needed = append(needed, p.Host)
	}
	// If survey has connected to all hosts, the connections to some hosts may run through hosts
	// without ranks. An elastic job may later start ranks on any host.
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
}

// bindRoot binds the listener of rank 0, or lets the host of rank 0 bind it. If all ranks are on one
// host, the listener is on loopback.
func (r *run) bindRoot() (err error) {
	alone := r.info.hosts() == 1
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

// newRemoteHost returns a host to which there is no connection yet. The processes that a connection
// starts are found by a numbered name of the job, such as job.3. Each connection has its own
// number, because processes of an earlier connection may still run on the host.
func (r *run) newRemoteHost(name string) *remoteHost {
	r.others.parts++
	return &remoteHost{
		hostName: name, inits: make(map[int]initState),
		first: remote.Prepare{Job: fmt.Sprintf("%s.%d", r.info.job, r.others.parts)},
	}
}

// ownAddress returns the name of this host, if the name has addresses and none of them is loopback.
// /etc/hosts often gives a host's own name a loopback address, which other hosts cannot use. In
// that case ownAddress returns the address from which this host reaches another host, or the name
// if that address is unknown.
func (r *run) ownAddress() string { return addressFor(r.others.hosts) }

// addressFor does for the given hosts what ownAddress does for the job's.
func addressFor(hosts []*remoteHost) string {
	own := hostname()
	if own != "" && isKnown(context.Background(), own) {
		return own
	}
	return cmp.Or(addressTowards(hosts), own)
}

// addressTowards returns the local address from which this host reaches the first of the hosts
// whose name it can look up. It skips names that only ssh's configuration defines. If it can look
// up no name, it returns "".
func addressTowards(hosts []*remoteHost) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*lookupLimit)
	defer cancel()
	for _, h := range hosts {
		limited, end := context.WithTimeout(ctx, lookupLimit)
		addr, err := route.To(limited, towards(h.hostName))
		if end(); err == nil {
			return addr.String()
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

// nodes returns, for each rank, the number of its host.
func (r *run) nodes() []int {
	nodes := make([]int, r.info.size)
	for rank, p := range r.info.places {
		nodes[rank] = p.Node
	}
	return nodes
}

// onHost returns " on " and the name of the host. It returns "" if h is nil, or if h is this host
// in a job without other hosts.
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
	hosts := slices.Clone(o.hosts) // further hosts may be added while the job runs
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

// begin makes the context and the channel that all connections share, unless they exist.
func (o *others) begin() {
	if o.end == nil {
		o.ctx, o.end = context.WithCancel(context.Background())
		o.events = make(chan hostEvent)
	}
}

// connectLater begins to connect to a host while the job runs, after a pause that grows with the
// number of the host's failures. The host's answer is an event. If the job has a host of the same
// name, that host is lost, and the new one replaces it.
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

// survey returns the hosts of the job. If the places of ranks depend on the hosts' processors, it
// fills these in: it connects to the other hosts, until ctx ends or the job's timeout has passed,
// and keeps the connections for connect. No rank runs yet, so a signal may simply end this process,
// and the connections with it.
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
	if cmp.Or(errs...) != nil {
		return nil, r.surveyFailed(ctx, names, errs)
	}
	return hosts, nil
}

// surveyFailed records which hosts are lost. It returns why no rank can start.
func (r *run) surveyFailed(ctx context.Context, names []string, errs []error) *startError {
	for i, err := range errs {
		if err != nil {
			r.others.addLost(names[i], err)
		}
	}
	r.others.unreached = true
	code := exitNotRunning
	switch {
	case ctx.Err() != nil:
		code = 128 + int(syscall.SIGTERM)
	case r.timedOut():
		code = exitTimeout
	}
	return &startError{code, "ranks on " + cmp.Or(errs...).Error()}
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

// fromHost handles a hostEvent.
func (r *run) fromHost(e hostEvent) {
	h := e.host
	switch {
	case h.lost != nil: // giveUp has closed the Link, so its further events have no meaning
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

// prepared handles the answer to Prepare. The ranks start once all hosts that the job begins with
// have answered. A host that is added later may get ranks as soon as it has answered.
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
		// Other hosts cannot look up the name, because only ssh's configuration may define it. So the
		// other ranks use the address to which ssh has connected.
		case !h.known && p.Reached != "":
			name = p.Reached
		}
		r.info.root = rootAddress(name, p.Port)
	}
	r.hostAnswered()
}

// hostAnswered records that a host that the job begins with is ready, or is no longer waited for.
// After the last of these hosts, the ranks start.
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

// omitLost removes the ranks of lost hosts before the first rank starts. The slots of these ranks
// get processes later, when the hosts can be reached or the slots have moved to other hosts.
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

// startFailedOn handles the failure to start a rank on another host.
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

// giveUp ends the connection to a host that cannot run ranks.
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

// overdueAt returns the first time at which giveUpOverdue must be called, or the constant never if
// no host still has to answer.
func (o *others) overdueAt() time.Duration {
	at := never
	for _, h := range o.hosts {
		at = min(at, h.overdueAt())
	}
	return at
}

// lost handles the loss of another host: it could not be reached, or its connection has ended. The
// ranks of the host count as failed. They may still run, but not for long: a host that receives
// nothing from the launcher kills its ranks.
func (r *run) lost(h *remoteHost, err error) {
	h.lost = err
	r.others.addLost(h.hostName, err)
	if r.others.pending > 0 {
		r.lostAtStart(h, err)
		return
	}
	r.note("host %v", err)
	for _, k := range r.ranks {
		if k.host == h && !k.ended && (k.starting || k.pid != 0) {
			k.starting, k.lost = false, err
			r.exited(exit{process: k.process, status: statusUnknown})
			k.killed = false // it is unknown what has ended the rank
		}
	}
	if r.epochs != nil {
		r.updateSlots()
	}
}

// lostAtStart handles a loss while some hosts have not answered, and so no rank runs. The job
// begins without the host, or does not start. If the host was connected through another host, that
// other host is lost, too. The reason is then reported for that other host, and not for this one.
func (r *run) lostAtStart(h *remoteHost, err error) {
	switch why := wayTo(err) == ""; {
	case r.canOmit():
		if why {
			r.note("host %v; the job begins without it", err)
		}
		if !h.prepared { // if the host is prepared, it has been counted before
			r.hostAnswered()
		}
	case r.startErr == nil && (why || r.epochs != nil):
		r.others.unreached = true
		r.startErr = &startError{exitNotRunning, "ranks on " + err.Error()}
	}
}

// addLost records that a host is lost. It does nothing if only the connection through another host
// has ended, because the host itself may be fine.
func (o *others) addLost(name string, err error) {
	if o.lost == nil {
		o.lost = make(map[string]bool)
	}
	if wayTo(err) == "" {
		o.lost[name] = true
	}
}

// wayTo returns the name of the host through which a lost host was connected, if it was lost
// because that connection has ended or was never made. If err is any other reason, wayTo returns
// "".
func wayTo(err error) string {
	if through := new(remote.ThroughError); errors.As(err, &through) {
		return through.Host
	}
	return ""
}

// pauseOthers tells the other hosts that this process will be silent. Their events may come before
// their answers, so it handles events while it waits for the answers.
func (r *run) pauseOthers() { r.onLinks((*remote.Link).Pause) }

// resumeOthers tells the other hosts that this process runs again. It gives them answerLimit to
// answer the commands from before the pause, because their deadlines may have passed while this
// process was stopped.
func (r *run) resumeOthers() {
	r.onLinks((*remote.Link).Resume)
	for _, h := range r.others.hosts {
		h.until = max(h.until, r.now()+answerLimit)
	}
}

// onLinks calls f for all Links, concurrently. It handles the events of other hosts until all calls
// have returned.
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

//go:build unix

package launch

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/pmi"
	"github.com/tutti-go/tutti/internal/vars"
)

// drainPoll is the interval at which the launcher looks for processes that ranks have left behind,
// after the last rank has ended.
const drainPoll = 20 * time.Millisecond

// absentPoll is the interval at which the launcher checks whether ranks wait in Init for a rank
// that has ended.
const absentPoll = 200 * time.Millisecond

// A run is one running job. The goroutine in Run owns all its fields. The other goroutines wait for
// processes, copy their output, and send events to the goroutine in Run.
type run struct {
	job       *Job
	apps      []App // the job's Apps; with a discovery script, their Ranks are what the script says
	info      jobInfo
	ranks     []*rank
	policy    *policy
	startedAt time.Time // the first start of the job

	out, err    *lineWriter
	outputFiles *outputFiles
	hostName    string
	local       *localHost
	hosts       []host // local, and the other hosts that have ranks
	others      others
	ca          *jobca.Authority // the job's CA; its private key never leaves this process
	secret      []byte           // the job's secret
	preload     preload          // the programs that are sent to other hosts
	pmi         *pmi.Server      // for programs of MPICH; with epochs no rank is connected to it
	copiers     sync.WaitGroup   // the goroutines that copy output, and those that serve PMI
	pipes       []stream         // the launcher's ends of the copiers' pipes
	input       *inputCopier     // copies the standard input to a rank; nil if a rank has inherited it

	base   []string // the environment that all ranks inherit
	epochs *epochs  // nil unless processes can become ranks of the running job
	failed string   // why there was no next epoch, if no rank had finished by then

	signals   chan os.Signal
	endSignal syscall.Signal // the first signal by which the user asked for the end; 0 if none
	startErr  *startError    // why a rank could not be started; nil if all were started
	absent    *rank          // a rank that has ended with 0 and without Init while others wait in Init, or nil
}

// A rank is one process of the job. It passes through the first three states in order, or from the
// first to the last:
//
//	pid  ended  meaning
//	0    false  not started
//	>0   false  runs
//	>0   true   has ended
//	0    true   could not be started while the job ran
//
// The field killed is set together with ended. It distinguishes ranks that the launcher has ended
// from ranks that failed by themselves.
type rank struct {
	id      int // the rank in verdicts; with epochs, its rank in its latest epoch, or its slot if it had none
	slot    int // the rank's index among the processes that may run at the same time
	restart int // how many processes were started in its slot before
	process int // the rank's index in run.ranks, which is its number in membership, host and exitRecord
	host    host
	app     *App
	program string

	pid       int
	starting  bool  // another host has not answered yet whether the process has started
	lost      error // why the host was lost while the rank ran; nil if it was not
	ended     bool  // the process has ended
	status    syscall.WaitStatus
	endedAt   time.Duration // the time from the job's start to the rank's end
	killed    bool          // the launcher had sent TERM or KILL to the rank before it ended
	lastError *lastError
	replaced  bool // another process runs in its slot, or none was needed; the outcome ignores this rank

	link *link // the rank's connection to the record of the ranks; nil without epochs
}

// run starts the ranks, and returns when all of them and all their children have ended. It also
// reports whether it makes sense to start the job again.
func (r *run) run(ctx context.Context) (out Outcome, again bool) {
	if err := r.prepare(ctx); err != nil {
		r.disconnect()
		out = startFailed(err)
		return out, r.mayRestart(ctx, &out)
	}
	// Signals are handled before the first rank starts. Otherwise a signal that arrives in between
	// could kill the launcher alone.
	r.notifySignals()
	defer r.cleanUp()
	if len(r.others.hosts) > 0 {
		r.connect()
	} else {
		r.startAll()
	}
	r.loop(ctx)
	// All processes are gone, but their last output may still be in the pipes.
	r.drain()
	r.ranks = slices.DeleteFunc(r.ranks, func(k *rank) bool { return k.replaced })
	out = r.outcome()
	again = r.mayRestart(ctx, &out)
	if r.info.timeline != "" {
		r.finishTimeline(&out)
	}
	if err := r.outputFiles.close(); err != nil {
		out.Verdict = append(out.Verdict, err.Error())
		out.Code = cmp.Or(out.Code, exitUnwritten)
	}
	return out, again
}

// finishTimeline merges the timeline. If that fails, a job that has otherwise succeeded fails.
func (r *run) finishTimeline(out *Outcome) {
	endedWell := func(id int) bool { return !r.ranks[id].notOK() }
	elsewhere := func(id int) bool { return r.ranks[id].host != r.local }
	notes, err := mergeTimeline(r.info.timeline, r.info.size, endedWell, elsewhere)
	for _, note := range notes {
		r.note("%s", note)
	}
	if err != nil {
		out.Verdict = append(out.Verdict, err.Error())
		out.Code = cmp.Or(out.Code, exitUnwritten)
	}
}

// startFailed returns the outcome of a job of which no process was started.
func startFailed(err error) Outcome {
	code := exitNotRunning
	var se *startError
	if errors.As(err, &se) {
		code = se.code
	}
	return Outcome{Code: code, Verdict: []string{"cannot start " + err.Error()}, Broken: true}
}

// now returns the time since the first start of the job, as policy and membership use it.
func (r *run) now() time.Duration { return time.Since(r.startedAt) }

// timedOut reports whether the time of the job is over.
func (r *run) timedOut() bool { return r.job.Timeout > 0 && r.now() >= r.job.Timeout }

// note prints a line of the launcher, unless --quiet is set.
func (r *run) note(format string, args ...any) {
	if !r.job.Quiet {
		r.err.logf(format, args...)
	}
}

// detail prints a line of the launcher if --verbose is set.
func (r *run) detail(format string, args ...any) {
	if r.job.Verbose {
		r.err.logf(format, args...)
	}
}

// prepare looks up all programs before any rank starts, and sets the fields that all ranks share.
// If it fails, it has started no process and left no file open.
func (r *run) prepare(ctx context.Context) error {
	// The launcher finds the job's processes by the job's name. Ranks authenticate each other by
	// the secret, and by certificates of the job's CA. All of these are random, so that concurrent
	// jobs of one user do not interfere.
	r.base = baseEnv(r.job.environ())
	r.hostName, _ = os.Hostname()
	r.info.job, r.secret = "job-"+hex.EncodeToString(random(8)), random(16)
	var err error
	if r.ca, err = jobca.New(r.info.job); err != nil {
		return err
	}
	if err := r.prepareEpochs(); err != nil {
		return err
	}
	hosts, err := r.survey(ctx)
	if err != nil {
		return err
	}
	if r.info.places, r.apps, err = r.job.assign(r.apps, hosts); err != nil {
		return err
	}
	for _, line := range r.job.describePlaces(r.job.Hosts, r.info.places) {
		r.err.logf("%s", line)
	}
	var apps []int // for each rank, the index of its App
	for i := range r.apps {
		r.info.size += r.apps[i].Ranks
		apps = append(apps, slices.Repeat([]int{i}, r.apps[i].Ranks)...)
	}
	r.pmi = pmi.NewServer(r.info.job, apps, r.nodes())
	if r.job.Timeline != "" {
		if r.info.timeline, err = prepareTimeline(r.job.Timeline, r.info.size); err != nil {
			return fmt.Errorf("with --timeline: %w", err)
		}
	}
	if err := r.prepareHosts(hosts); err != nil {
		r.release()
		return err
	}
	for i := range r.apps {
		if err := r.addApp(&r.apps[i]); err != nil {
			r.release()
			return err
		}
	}
	r.policy = newPolicy(len(r.ranks), r.job.Grace, r.job.Timeout)
	if len(r.others.hosts) > 0 {
		r.policy.survival = lostLimit
	}
	return nil
}

// addApp appends the ranks of an App. It looks up the program for ranks on this host.
func (r *run) addApp(a *App) error {
	program := a.Args[0]
	if r.job.Preload {
		s := spec{args: a.Args, env: slices.Concat(r.base, a.Set), dir: a.Dir}
		if err := r.preload.add(a, &s); err != nil {
			return err
		}
		program = s.program
	}
	for range a.Ranks {
		k := r.addRank(a, program, len(r.ranks))
		if k.host != r.local || program != a.Args[0] {
			continue
		}
		if err := r.findProgram(k); err != nil {
			return err
		}
		program = k.program
	}
	return nil
}

// findProgram looks up the program of a rank that runs on this host. Other hosts look it up
// themselves.
func (r *run) findProgram(k *rank) *startError {
	if k.host != r.local {
		return nil
	}
	s := spec{args: k.app.Args, env: slices.Concat(r.base, k.app.Set), dir: k.app.Dir}
	err := s.find()
	k.program = cmp.Or(s.program, k.program)
	return err
}

// addRank appends a rank that runs in the given slot.
func (r *run) addRank(a *App, program string, slot int) *rank {
	k := &rank{
		id: slot, slot: slot, process: len(r.ranks), host: r.hostOf(slot), app: a, program: program,
		lastError: new(lastError),
	}
	r.ranks = append(r.ranks, k)
	return k
}

// random returns n random bytes. crypto/rand does not fail.
func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// rootPorts returns the port or the range of ports that the user has chosen for rank 0, or "".
func (r *run) rootPorts() string {
	addr, _ := lookup(r.apps[0].Set, vars.Listen)
	_, ports, _ := net.SplitHostPort(addr)
	return ports
}

// listenInRange binds the first free port of a range on all interfaces, or any port if ports is "".
// It does not report a text that it cannot parse, because the ranks report that.
func listenInRange(config *net.ListenConfig, ports string) (l net.Listener, err error) {
	low, high, _ := strings.Cut(ports, "-")
	first, _ := strconv.ParseUint(low, 10, 16)
	last, _ := strconv.ParseUint(high, 10, 16)
	for port := first; port <= max(first, last); port++ {
		l, err = config.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, fmt.Errorf("%s: the ports %s are used up: %w; end what listens there, or give more ports", vars.Listen, ports, err)
}

// listen binds the job's address. If alone is set, all ranks are on one host, and the address is on
// loopback. It is an IPv6 address if loopback has no IPv4. Otherwise the address is on all
// interfaces, with a port in the range ports unless that is "". listen returns the listener as a
// file for rank 0 to inherit.
func listen(alone bool, ports string) (*os.File, netip.AddrPort, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the links between ranks are plain TCP
	var l net.Listener
	var err error
	if !alone {
		l, err = listenInRange(&config, ports)
	} else if l, err = config.Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
		if l6, err6 := config.Listen(context.Background(), "tcp", "[::1]:0"); err6 == nil {
			l, err = l6, nil
		}
	}
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	return file, l.Addr().(*net.TCPAddr).AddrPort(), err
}

// notifySignals delivers this process's signals to the job's goroutine. If the process was started
// with a signal ignored, as by nohup, the signal stays ignored, here and in the ranks.
func (r *run) notifySignals() {
	r.signals = make(chan os.Signal, 16)
	for _, s := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGPIPE,
	} {
		if !signal.Ignored(s) {
			signal.Notify(r.signals, s)
		}
	}
}

// cleanUp undoes notifySignals, stops the starter, the guardian and the copying of stdin, and
// closes all connections.
func (r *run) cleanUp() {
	signal.Stop(r.signals)
	if r.input != nil {
		r.input.stop()
	}
	r.release()
}

// release ends the connections of the ranks, and closes the hosts.
func (r *run) release() {
	r.epochs.close()
	r.local.close()
	r.disconnect()
	r.preload.close()
}

// loop handles events until no process of the job is left, or the remaining processes cannot be
// ended.
func (r *run) loop(ctx context.Context) {
	canceled, broken := ctx.Done(), r.pmi.Failed()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !r.isOver() {
		r.checkAbsent()
		r.advance()
		timer.Reset(r.pause())
		select {
		case e := <-r.local.exits:
			r.local.received(e)
			r.exited(e)
		case e := <-r.others.events:
			r.fromHost(e)
		case n := <-r.epochs.requests():
			r.asked(n)
		case found := <-r.epochs.discovered():
			r.epochs.found = found
			r.updateSlots()
		case s := <-r.signals:
			r.signalled(s.(syscall.Signal))
		// A nil channel is never ready. So the end of the context is handled only once.
		case <-canceled:
			canceled = nil
			r.signalAll(r.policy.end(r.now()))
		case <-broken:
			broken = nil
			r.policy.rankAbsent(r.now())
			// The rank's connection to the PMI server ends before the rank's process. A rank that is
			// ending gets the time killAfter to do so, because its exit status says why.
			r.policy.deadline = max(r.policy.deadline, r.now()+killAfter)
			if r.pmi.Failure().Aborted {
				r.signalAll(r.policy.end(r.now()))
			}
		case <-timer.C:
			// The timer also fires before the deadline, to poll for children.
			if now := r.now(); now >= r.policy.deadline {
				r.deadlinePassed(now)
			}
			r.giveUpOverdue()
		}
	}
}

// isOver reports whether loop has nothing left to do.
func (r *run) isOver() bool {
	if r.policy.phase == abandoned {
		return true
	}
	// Before all hosts have answered, no process runs.
	if r.others.pending > 0 {
		return r.startErr != nil || r.endSignal != 0 || r.policy.phase >= terminating
	}
	return r.policy.alive == 0 && len(r.left()) == 0
}

// pause returns how long to wait for the next event. Children of ranks that have ended send no
// event, so the launcher polls for them.
func (r *run) pause() time.Duration {
	d := min(r.policy.deadline, r.epochs.next(r.now()), r.others.overdueAt()) - r.now()
	switch {
	case r.policy.alive == 0:
		d = min(d, drainPoll)
	case r.policy.phase == running && slices.ContainsFunc(r.ranks, (*rank).endedWithoutInit):
		d = min(d, absentPoll)
	}
	return max(d, 0)
}

// checkAbsent looks for a rank that has ended with 0 without calling Init, while another rank has
// called Init. Init waits for all ranks, so the job can never start. Exiting with 0 is not a
// failure, so nothing but checkAbsent would end the job.
func (r *run) checkAbsent() {
	if r.policy.phase != running || !slices.ContainsFunc(r.ranks, (*rank).runsInit) {
		return
	}
	if i := slices.IndexFunc(r.ranks, (*rank).endedWithoutInit); i >= 0 {
		r.absent = r.ranks[i]
		r.policy.rankAbsent(r.now())
	}
}

// endedWithoutInit reports whether a rank and its children have ended without calling Init, and the
// rank exited with 0.
func (k *rank) endedWithoutInit() bool {
	return k.ended && k.status == 0 && k.host.calledInit(k.process) == initNever
}

// runsInit reports whether a rank is running and has called Init.
func (k *rank) runsInit() bool { return !k.ended && k.host.calledInit(k.process) == initCalled }

// exited handles the end of a rank.
func (r *run) exited(e exit) {
	k := r.ranks[e.process]
	k.ended, k.status, k.endedAt = true, e.status, r.now()
	// From the phase terminating on, ranks end because the launcher signals them.
	k.killed = r.policy.phase >= terminating
	if e.joined {
		for _, h := range r.hosts {
			if h != k.host {
				h.died(k.process)
			}
		}
	}
	if r.epochs == nil {
		r.policy.exited(r.now(), e.status != 0 && !r.job.Recovery)
		return
	}
	// The rest of the process group must not go on in the old epoch beside the next epoch. If the job
	// is ending, there is no next epoch, and the rest keeps its grace period.
	if e.status != 0 && !r.epochs.stopped {
		k.host.signal(k.process, syscall.SIGKILL)
	}
	r.epochs.exited(k, r.now())
}

// deadlinePassed handles the deadline of a phase. After the phase draining, it reports the
// processes that ranks have left behind.
func (r *run) deadlinePassed(now time.Duration) {
	phase := r.policy.phase
	// The processes are listed first, because they may be gone after the signal.
	left := slices.DeleteFunc(r.left(), func(name string) bool { return name == "" })
	r.signalAll(r.policy.deadlinePassed(now))
	if phase == draining && len(left) > 0 {
		r.note("ended %s that ranks had left behind", describe(left))
	}
}

// signalled handles one signal to the launcher. TSTP stops the ranks first, and then the launcher
// itself.
func (r *run) signalled(s syscall.Signal) {
	switch s {
	case syscall.SIGPIPE:
		// This process's own writes report a closed pipe as an error, so the signal is ignored.
	case syscall.SIGTSTP:
		r.signalAll(s)
		// This process handles SIGTSTP, so it stops itself by SIGSTOP. CONT resumes it, and is then
		// forwarded. Meanwhile other hosts must not treat this process as lost.
		r.pauseOthers()
		syscall.Kill(os.Getpid(), syscall.SIGSTOP) // may return before this process stops
	case syscall.SIGCONT:
		r.resumeOthers()
		r.signalAll(s)
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		if r.endSignal == 0 {
			r.endSignal = s
		}
		r.signalAll(r.policy.interrupted(r.now(), s))
	default:
		r.signalAll(s)
	}
}

// signalAll signals every process group that has members. From the phase terminating on, it also
// signals processes outside the process groups that have the name of the job's part in their
// environment.
func (r *run) signalAll(s syscall.Signal) {
	switch s {
	case 0:
		return
	case syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGCONT:
	default:
		r.pmi.Signalled()
	}
	if r.policy.phase >= terminating {
		r.pmi.Stop() // the launcher ends all ranks now, so the ends of their connections are not failures
	}
	for _, h := range r.hosts {
		h.signalAll(s, r.policy.phase >= terminating)
	}
}

// left describes the processes that the job still has.
func (r *run) left() (names []string) {
	for _, h := range r.hosts {
		names = append(names, h.left()...)
	}
	return names
}

// maxNames bounds the processes that describe lists.
const maxNames = 8

// describe lists processes.
func describe(left []string) string {
	if len(left) > maxNames {
		left = append(left[:maxNames:maxNames], "...")
	}
	return strings.Join(left, ", ")
}

// drain waits until all output has been copied, and until the PMI server has read what ranks have
// sent. Normally the copiers end when the last process has closed its end of a pipe. A process that
// has survived KILL, or has detached itself from the job, may hold a pipe open:
//
//   - After the time killAfter, drain finishes the pipes of this host and closes the PMI
//     connections.
//   - Other hosts finish their pipes in the same way, which ends their streams. Their output may
//     still arrive much later, if the network or the reader of this process's output is slow. If
//     nothing arrives on a stream for farLimit intervals, drain closes the stream.
//
// A signal also ends the wait.
func (r *run) drain() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.copiers.Wait()
	}()
	// A process that has detached itself from the job may still hold a rank's connection to the PMI
	// server. On Linux the server still reads what the rank has sent before. On other systems
	// CloseRead would discard that, so drain waits for the process.
	if runtime.GOOS == "linux" {
		r.pmi.CloseRead()
	}
	late := time.After(killAfter)
	tick := time.NewTicker(farInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			r.noteCut()
			return
		case <-tick.C:
			r.giveUpStuck()
		case <-late:
			for _, p := range r.pipes {
				if t, here := p.(*tail); here {
					t.finish()
				} else if r.policy.phase == abandoned {
					p.Close()
				}
			}
			r.pmi.Close()
		case s := <-r.signals:
			switch s {
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
				return
			}
		}
	}
}

// giveUpStuck closes the streams of other hosts on which nothing has arrived for too long.
func (r *run) giveUpStuck() {
	for host := range r.hostsWith((*farTail).giveUp) {
		r.note("host %s has not ended the output of its ranks within %v, and what is missing is lost", host, farLimit*farInterval)
	}
}

// noteCut names the hosts whose connection was lost after the end of their ranks, and whose output
// is incomplete. It is the only report of the loss, because no rank runs any more.
func (r *run) noteCut() {
	for host := range r.hostsWith((*farTail).isCut) {
		r.note("host %s: the connection has ended before the output of its ranks, and what is missing is lost", host)
	}
}

// hostsWith calls f for each stream of another host, and returns the names of the hosts for which f
// has returned true.
func (r *run) hostsWith(f func(*farTail) bool) map[string]bool {
	names := make(map[string]bool)
	for _, p := range r.pipes {
		if t, far := p.(*farTail); far && f(t) {
			names[t.host.hostName] = true
		}
	}
	return names
}

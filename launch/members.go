package launch

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A membership decides which processes a job has, and which of them are the ranks of its next
// epoch. It is a pure state machine. Times are durations since the start of the job. A process has
// a number, which is never used again, and runs in a slot, which is a place for one process. A slot
// belongs to a host, and hosts have numbers, too.
//
// A process passes through these states:
//
//	starting  runs, and has not asked for an epoch; its epoch is noEpoch
//	ready     asks for the next epoch
//	member    is a rank of the current epoch; may become ready again
//
// There are never two epochs side by side, because the next epoch is formed only when no process is
// a member: each process that was a member has asked for the next epoch, or has ended. The
// processes of a lost host count as ended, because the host kills them.
//
//	input                      effect
//	started                    a process runs in a slot
//	ready                      a process is ready; if it was a member, its epoch is broken
//	withdrawn                  a process takes back its request; if it was a member, its epoch is broken
//	ended, failed              if it was a member, its epoch is broken; its slot gets another start
//	                           while restarts are left
//	ended, with 0              its slot gets no other start; if it was ever a member, the job is
//	                           finishing: no slot gets a start
//	available                  the number of usable slots of hosts has changed
//	stop                       the job ends: no slot gets a start
//
// After each input, and at the time wakeAt, the caller calls starts, absent, overdue, surplus, form
// and failure, in this order, and carries out what they return.
type membership struct {
	min, max  int
	first     int           // how many processes the first epoch needs, if that is more than min
	restarts  int           // how many failed processes may still be started again
	waitLimit time.Duration // how long ready processes wait for one that is not ready
	grows     bool          // available may be called again, so more slots may become usable
	cooldown  [2]time.Duration

	slots     []slot          // all slots that were ever usable
	usable    []int           // for each host, how many of its slots are usable now: those with the lowest local numbers
	processes map[int]*member // the processes that run

	epoch     int // noEpoch before the first
	broken    bool
	left      bool          // a member has exited with 0
	since     time.Duration // the start of the current wait, or never if nothing waits; see updateSince
	warned    bool          // absent has returned the processes for which the next epoch waits
	finishing bool
	stopped   bool
	failed    string
}

// noEpoch is the epoch of a process that was never a member.
const noEpoch = -1

// noProcess is the process of a slot in which none runs.
const noProcess = -1

// A slot is a place for one process.
type slot struct {
	host     int
	local    int           // the slot's number among the slots of its host
	process  int           // the process that runs, or noProcess
	failures int           // how many processes have failed in the slot
	startAt  time.Duration // the earliest time of the next start
	closed   bool          // a process in the slot has exited with 0
}

// A member is a process that runs. It may be a rank of the current epoch, a newcomer that has no
// epoch yet, or a process that was told to end.
type member struct {
	id, slot    int
	epoch, rank int // the last epoch of which it was a member, and its rank there
	ready       bool
	addr        string // the address of the process's listener, if the process is ready
	dismissed   bool   // the process has been told to end
	overdue     bool   // overdue has returned the process, so the process was killed
	dismissedAt time.Duration
	startedAt   time.Duration
}

// newMembership returns the membership of a job without processes and slots.
func newMembership(e *Elastic) *membership {
	return &membership{
		min: e.Min, max: e.Max, first: e.First, restarts: e.Restarts, waitLimit: e.WaitLimit, grows: e.Discovery != "", cooldown: e.Cooldown,
		processes: make(map[int]*member), epoch: noEpoch, since: never,
	}
}

// begin makes one usable slot for each element of hosts, which is the number of the slot's host. It
// also sets the bounds that depend on the number of processes that begin, because that number is
// known only now.
func (m *membership) begin(hosts []int) {
	n := len(hosts)
	m.min, m.max, m.first = cmp.Or(m.min, n), cmp.Or(m.max, n), min(m.first, n)
	m.usable = make([]int, slices.Max(hosts)+1)
	for _, h := range hosts {
		m.slots = append(m.slots, slot{host: h, local: m.usable[h], process: noProcess})
		m.usable[h]++
	}
}

// available sets how many slots each host has. A usable slot stays usable if its host still has
// enough slots. If grows is set, further slots then become usable, host by host, up to max in all.
// Otherwise the slots of hosts that have none left move to other hosts.
func (m *membership) available(hosts []int) {
	usable, room := make([]int, len(hosts)), m.max
	for h, n := range hosts {
		if h < len(m.usable) {
			usable[h] = min(m.usable[h], n)
		}
		room -= usable[h]
	}
	if m.usable = usable; !m.grows {
		m.moveSlots(hosts)
		return
	}
	have := make([]int, len(hosts))
	for _, s := range m.slots {
		have[s.host]++
	}
	for h, n := range hosts {
		more := min(n-usable[h], room)
		usable[h], room = usable[h]+more, room-more
		for ; have[h] < usable[h]; have[h]++ {
			m.slots = append(m.slots, slot{host: h, local: have[h], process: noProcess})
		}
	}
}

// moveSlots moves empty slots from hosts that have no slots any more to hosts that have more slots
// than are usable. A slot keeps its count of failures when it moves. If a process has failed in it,
// the next start in it still counts as a restart.
func (m *membership) moveSlots(hosts []int) {
	for i := range m.slots {
		s := &m.slots[i]
		if hosts[s.host] > 0 || s.process != noProcess || s.closed {
			continue
		}
		for h, n := range hosts {
			if m.usable[h] < n {
				s.host, s.local = h, 0
				for m.shared(i) {
					s.local++
				}
				m.usable[h]++
				break
			}
		}
	}
}

// shared reports whether another slot has the same host and the same local number as the slot at.
func (m *membership) shared(at int) bool {
	for i, s := range m.slots {
		if i != at && s.host == m.slots[at].host && s.local == m.slots[at].local {
			return true
		}
	}
	return false
}

// started records that a process runs in a slot. If a process has failed in this slot before, the
// start uses up a restart.
func (m *membership) started(id, at int, now time.Duration) {
	if m.slots[at].failures > 0 {
		m.restarts--
	}
	m.slots[at].process = id
	m.processes[id] = &member{id: id, slot: at, epoch: noEpoch, rank: noEpoch, startedAt: now}
	m.updateSince(now)
}

// ready records that a process asks for the next epoch.
func (m *membership) ready(id int, addr string, now time.Duration) {
	p := m.processes[id]
	if p == nil {
		return // the process has ended meanwhile
	}
	p.ready, p.addr = true, addr
	m.broken = m.broken || m.isMember(p)
	m.updateSince(now)
}

// withdrawn records that a process takes back its request. If the epoch has been formed meanwhile,
// that epoch is broken.
func (m *membership) withdrawn(id int, now time.Duration) {
	p := m.processes[id]
	if p == nil {
		return // the process has ended meanwhile
	}
	p.ready, p.addr = false, ""
	m.broken = m.broken || m.isMember(p)
	m.updateSince(now)
}

// updateSince sets since to now when the first member becomes ready. If no member runs, the first
// process that becomes ready counts instead. If no process counts, since is the constant never.
// While members run, a ready newcomer does not set since, because members may compute for a long
// time before they ask.
func (m *membership) updateSince(now time.Duration) {
	memberRuns, memberWaits := false, false
	for _, p := range m.processes {
		memberRuns = memberRuns || m.isMember(p)
		memberWaits = memberWaits || m.isMember(p) && p.ready
	}
	switch {
	case !memberWaits && (memberRuns || !m.anyReady()):
		m.since, m.warned = never, false
	case m.since == never:
		m.since = now
	}
}

// isMember reports whether a process was a rank when the current epoch began.
func (m *membership) isMember(p *member) bool { return p.epoch == m.epoch && m.epoch != noEpoch }

// ended records that a process has ended. The parameter failed says that it has not exited with 0.
func (m *membership) ended(id int, failed bool, now time.Duration) {
	p := m.processes[id]
	if p == nil {
		return
	}
	delete(m.processes, id)
	s := &m.slots[p.slot]
	s.process = noProcess
	switch {
	case p.dismissed:
		m.broken = m.broken || m.isMember(p)
	case failed:
		m.broken = m.broken || m.isMember(p)
		s.failures++
		s.startAt = now + m.pauseAfter(s.failures)
	default:
		s.closed = true
		m.left = m.left || m.isMember(p)
		m.finishing = m.finishing || p.epoch != noEpoch
	}
	m.updateSince(now)
}

// pauseAfter returns how long a slot stays unused after a failure, given the number of failures in
// the slot so far. The first failure may be an accident, so there is no pause after it. From the
// second failure on, the pause doubles with each failure.
func (m *membership) pauseAfter(failures int) time.Duration {
	if failures < 2 {
		return 0
	}
	pause := m.cooldown[0]
	for range failures - 2 {
		pause = min(2*pause, m.cooldown[1])
	}
	return pause
}

// stop prevents all further starts, because the job ends.
func (m *membership) stop() { m.stopped = true }

// pending returns the slots that will get a process, in ascending order. A slot in which a process
// has failed gets a process only while restarts are left. A host may still run processes in slots
// that are no longer usable. For each of them, one usable slot of the host stays empty.
func (m *membership) pending() (slots []int) {
	if m.stopped || m.finishing || m.failed != "" {
		return nil
	}
	restarts, free := m.restarts, slices.Clone(m.usable)
	for _, p := range m.kept() {
		free[m.slots[p.slot].host]--
	}
	before := make([]int, len(m.usable)) // slots of each host before slot i
	for i, s := range m.slots {
		before[s.host]++
		switch {
		case s.process != noProcess || s.closed || free[s.host] <= 0 || before[s.host] > m.usable[s.host]:
			continue
		case s.failures > 0 && restarts == 0:
			continue
		case s.failures > 0:
			restarts--
		}
		free[s.host]--
		slots = append(slots, i)
	}
	return slots
}

// kept returns the processes that have not been told to end, in the order of their slots.
func (m *membership) kept() (kept []*member) {
	for _, p := range m.processes {
		if !p.dismissed {
			kept = append(kept, p)
		}
	}
	slices.SortFunc(kept, func(a, b *member) int { return cmp.Compare(a.slot, b.slot) })
	return kept
}

// starts returns the slots in which a process must be started now.
func (m *membership) starts(now time.Duration) []int {
	return slices.DeleteFunc(m.pending(), func(i int) bool { return m.slots[i].startAt > now })
}

// alive returns how many processes run or will be started.
func (m *membership) alive() int { return len(m.processes) + len(m.pending()) }

// overdue returns the processes that must be killed now. It returns each process once.
func (m *membership) overdue(now time.Duration) (ids []int) {
	for _, p := range m.processes {
		if now >= m.killAt(p) {
			p.overdue = true
			ids = append(ids, p.id)
		}
	}
	return ids
}

// absent returns the processes for which others have waited for the time stallAfter. It returns
// them only once per epoch.
func (m *membership) absent(now time.Duration) (ids []int) {
	if now < m.warnAt() {
		return nil
	}
	m.warned = true
	for _, p := range m.inOrder() {
		if !p.ready {
			ids = append(ids, p.id)
		}
	}
	return ids
}

// warnAt returns the time from which absent returns processes, or the constant never if absent
// returns none.
func (m *membership) warnAt() time.Duration {
	if m.warned || m.since == never {
		return never
	}
	return m.since + stallAfter
}

// stallAfter is how long processes wait for the next epoch before the launcher names the processes
// that they wait for.
const stallAfter = 30 * time.Second

// killAt returns the time at which a process must be killed, or the constant never if it may run on
// or has been killed already. A process that was told to end has the time killAfter. A process that
// is not ready has the time waitLimit. That time begins when others begin to wait, or at the
// process's own start if that is later.
func (m *membership) killAt(p *member) time.Duration {
	switch {
	case p.overdue:
	case p.dismissed:
		return p.dismissedAt + killAfter
	case !p.ready && m.since != never:
		return max(m.since, p.startedAt) + m.waitLimit
	}
	return never
}

// surplus returns the processes that must be told to end, each of them once. If a host has more
// processes than usable slots, the processes in its highest slots must end. While the job is
// finishing, processes that were never members must end.
func (m *membership) surplus(now time.Duration) (ids []int) {
	kept := make([]int, len(m.usable)) // by host
	for _, p := range m.kept() {
		h := m.slots[p.slot].host
		if kept[h]++; kept[h] > m.usable[h] || m.finishing && p.epoch == noEpoch {
			p.dismissed, p.dismissedAt = true, now
			ids = append(ids, p.id)
		}
	}
	return ids
}

// form makes processes the members of the next epoch, and returns them in the order of their ranks.
// It returns nil if the next epoch cannot be formed now. Processes that were members before come
// first, in the order of their ranks.
func (m *membership) form() []*member {
	if m.failed != "" || len(m.processes) < max(m.least(), 1) {
		return nil
	}
	for _, p := range m.processes {
		if !p.ready || p.dismissed {
			return nil
		}
	}
	all := m.inOrder()
	m.epoch++
	m.broken, m.left, m.since, m.warned = false, false, never, false
	for rank, p := range all {
		p.ready, p.epoch, p.rank = false, m.epoch, rank
	}
	return all
}

// least returns how many processes the next epoch needs.
func (m *membership) least() int {
	if m.epoch == noEpoch {
		return max(m.first, m.min)
	}
	return m.min
}

// inOrder returns all processes. Those of the latest epoch come first, by rank, and the others
// follow, by slot.
func (m *membership) inOrder() []*member {
	var all []*member
	for _, p := range m.processes {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *member) int {
		return cmp.Or(cmp.Compare(b.epoch, a.epoch), cmp.Compare(a.rank, b.rank), cmp.Compare(a.slot, b.slot))
	})
	return all
}

// waiting reports whether a process that is not a rank of the current epoch is ready.
func (m *membership) waiting() bool {
	for _, p := range m.processes {
		if p.ready && !m.isMember(p) {
			return true
		}
	}
	return false
}

// failure returns why there will be no next epoch, or "". Once set, the reason does not change.
// There will be no next epoch if it needs more processes than run and will be started, with these
// exceptions:
//
//   - If further slots may become usable, failure first waits for them, at most for the time
//     waitLimit.
//   - If no process is left, the job has simply ended, unless it is deserted.
//   - While the job is finishing, and before the first epoch, having too few processes is a failure
//     only if a process waits for the next epoch. Programs that never call Init need no epoch.
func (m *membership) failure(now time.Duration) string {
	n, deserted := m.alive(), m.isDeserted()
	if deserted && m.since == never {
		m.since = now
	}
	switch {
	case m.failed != "" || n >= m.least() || m.stopped:
	case !deserted && (n == 0 || !m.anyReady() && (m.finishing || m.epoch == noEpoch)):
	case m.grows && !m.finishing && (m.since == never || now-m.since < m.waitLimit):
	default:
		m.failed = fmt.Sprintf("ranks left: got %d, want at least %d (--min-np), and no other will be started", n, m.least())
	}
	return m.failed
}

// isDeserted reports whether no process runs because no host can be reached, and a process will be
// started once a host can be reached. If no process may be started any more, the job is not
// deserted: it has simply ended.
func (m *membership) isDeserted() bool {
	if !m.grows || m.finishing || m.stopped || m.failed != "" || len(m.processes) > 0 || slices.Max(m.usable) > 0 {
		return false
	}
	return slices.ContainsFunc(m.slots, func(s slot) bool { return !s.closed && (s.failures == 0 || m.restarts > 0) })
}

// anyReady reports whether a process is ready.
func (m *membership) anyReady() bool {
	for _, p := range m.processes {
		if p.ready {
			return true
		}
	}
	return false
}

// wakeAt returns the next time at which the results of other methods may change without an input,
// or the constant never if there is no such time.
func (m *membership) wakeAt(now time.Duration) time.Duration {
	at := m.warnAt()
	for _, i := range m.pending() {
		at = min(at, m.slots[i].startAt)
	}
	for _, p := range m.processes {
		at = min(at, m.killAt(p))
	}
	if m.grows && m.failed == "" && m.since != never && now < m.since+m.waitLimit {
		at = min(at, m.since+m.waitLimit)
	}
	return at
}

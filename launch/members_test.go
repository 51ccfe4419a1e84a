package launch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// A jobModel is a membership, and what a launcher and the processes of its job know. It checks what
// the membership answers.
type jobModel struct {
	*membership
	t         *testing.T
	now       time.Duration
	next      int          // the number of the next process
	inside    map[int]bool // the processes that may use the current epoch's communicator: members that have not asked again
	old       map[int]int  // the last rank of each process that was a member
	signalled map[int]bool // the processes that were told to end, or killed
	named     []int        // the processes that were named because others wait for them
	formed    [][]int      // the members of each epoch
	history   []string
}

// newJobModel returns a job that has started a process in each of n slots of one host.
func newJobModel(t *testing.T, e Elastic, n int) *jobModel {
	return newJobModelOn(t, e, make([]int, n)...)
}

// newJobModelOn returns a job that has started a process in a slot of each of the given hosts.
func newJobModelOn(t *testing.T, e Elastic, hosts ...int) *jobModel {
	e.WaitLimit, e.Cooldown = 10*time.Second, [2]time.Duration{time.Second, 4 * time.Second}
	j := &jobModel{membership: newMembership(&e), t: t, inside: make(map[int]bool), old: make(map[int]int), signalled: make(map[int]bool)}
	j.begin(hosts)
	j.apply("begin")
	return j
}

// apply carries out what the membership answers after an input, as run.advance does, and checks it.
func (j *jobModel) apply(input string, args ...any) {
	j.history = append(j.history, fmt.Sprintf(input, args...))
	for _, at := range j.starts(j.now) {
		j.started(j.next, at, j.now)
		j.next++
	}
	j.named = append(j.named, j.absent(j.now)...)
	want, left := 0, slices.Clone(j.usable)
	for _, p := range j.kept() {
		if h := j.slots[p.slot].host; left[h] > 0 {
			left[h]--
			want++
		}
	}
	for _, id := range slices.Concat(j.overdue(j.now), j.surplus(j.now)) {
		j.signalled[id] = true
	}
	if got := len(j.kept()); got != want && !j.finishing {
		j.t.Fatalf("got %d processes that may stay, want %d; %q", got, want, j.history)
	}
	var order []int // of the ranks before
	for id := range j.processes {
		order = append(order, id)
	}
	members := j.form()
	j.failure(j.now)
	if members == nil {
		return
	}
	if len(j.inside) > 0 {
		j.t.Fatalf("epoch %d: got formed while %v may use the epoch before; %q", j.epoch, j.inside, j.history)
	}
	if len(members) != len(order) || len(members) < j.min || len(j.formed) == 0 && len(members) < j.first {
		j.t.Fatalf("epoch %d: got %d members of %d processes, want all, and at least %d, at first %d; %q", j.epoch, len(members), len(order), j.min, j.first, j.history)
	}
	if j.failed != "" {
		j.t.Fatalf("epoch %d: got formed after a failure; %q", j.epoch, j.history)
	}
	var ids []int
	last, newcomers := -1, false
	for rank, m := range members {
		before, survivor := j.old[m.id]
		if survivor && (newcomers || before <= last) || m.rank != rank {
			j.t.Fatalf("epoch %d: got rank %d for process %d, want survivors first, in their order; %q", j.epoch, rank, m.id, j.history)
		}
		last, newcomers = before, newcomers || !survivor
		ids = append(ids, m.id)
	}
	j.old = make(map[int]int)
	for rank, id := range ids {
		j.inside[id], j.old[id] = true, rank
	}
	j.formed = append(j.formed, ids)
}

// ask tells the model that a process asks for the next epoch.
func (j *jobModel) ask(id int) {
	delete(j.inside, id)
	j.ready(id, fmt.Sprint("host:", id), j.now)
	j.apply("%d asks", id)
}

// withdraw tells the model that a process no longer asks for the next epoch.
func (j *jobModel) withdraw(id int) {
	j.withdrawn(id, j.now)
	j.apply("%d withdraws", id)
}

// end tells the model that a process has ended.
func (j *jobModel) end(id int, failed bool) {
	delete(j.inside, id)
	j.ended(id, failed, j.now)
	j.apply("%d ends, failed %v", id, failed)
}

// tick tells the model that the time of the next answer has come.
func (j *jobModel) tick() {
	j.now = j.wakeAt(j.now)
	j.apply("time %v", j.now)
}

// state returns all that decides what can happen next.
func (j *jobModel) state() string {
	s := fmt.Sprint(j.slots, j.usable, j.restarts, j.epoch, j.broken, j.left, j.since, j.finishing, j.failed, j.now, j.next)
	for _, p := range j.inOrder() {
		s += fmt.Sprint(*p)
	}
	return s
}

// TestNoOrderOfEventsLeadsToTwoEpochsSideBySide explores every order in which up to three processes
// ask, withdraw and end, with restarts and growth. In each situation, wantEnd checks that an epoch
// is formed or the job fails, once all processes ask and time passes.
func TestNoOrderOfEventsLeadsToTwoEpochsSideBySide(t *testing.T) {
	for _, e := range []Elastic{
		{Min: 1, Max: 3, First: 3}, {Min: 2, Max: 3, Restarts: 2}, {Min: 3, Max: 3, Restarts: 1}, {Min: 1, Max: 3, Restarts: 1, Discovery: "x"},
	} {
		t.Run(fmt.Sprintf("%+v", e), func(t *testing.T) {
			type input func(*jobModel)
			seen := make(map[string]int) // how many further inputs were explored from each situation
			replay := func(path []input) *jobModel {
				begin := 3
				if e.Discovery != "" {
					begin = 2
				}
				j := newJobModel(t, e, begin)
				for _, in := range path {
					in(j)
				}
				return j
			}
			var explore func(path []input, depth int)
			explore = func(path []input, depth int) {
				j := replay(path)
				s := j.state()
				explored, again := seen[s]
				if again && explored >= depth {
					return
				}
				if seen[s] = depth; !again {
					j.wantEnd()
				}
				if depth == 0 {
					return
				}
				j = replay(path)
				inputs := []input{}
				for id := range j.next {
					if p := j.processes[id]; p != nil {
						if p.ready {
							inputs = append(inputs, func(j *jobModel) { j.withdraw(id) })
						} else {
							inputs = append(inputs, func(j *jobModel) { j.ask(id) })
						}
						inputs = append(inputs, func(j *jobModel) { j.end(id, true) }, func(j *jobModel) { j.end(id, false) })
					}
				}
				if j.wakeAt(j.now) != never {
					inputs = append(inputs, (*jobModel).tick)
				}
				if e.Discovery != "" {
					for _, slots := range [][]int{{1, 0}, {3, 0}, {1, 1}} {
						inputs = append(inputs, func(j *jobModel) {
							j.available(slots)
							j.apply("slots %v", slots)
						})
					}
				}
				for _, in := range inputs {
					explore(append(slices.Clip(path), in), depth-1)
				}
			}
			explore(nil, 6)
			t.Logf("%d situations", len(seen))
		})
	}
}

// wantEnd makes every process ask for the next epoch, or end if it was told to end. The membership
// must then form an epoch or fail, unless no process is left and none will be started.
func (j *jobModel) wantEnd() {
	epochs := len(j.formed)
	for range 40 {
		if len(j.formed) > epochs || j.failed != "" || len(j.processes) == 0 && len(j.pending()) == 0 {
			return
		}
		before := len(j.history)
		for id := range j.next {
			switch p := j.processes[id]; {
			case p == nil:
			case j.signalled[id]:
				j.end(id, true)
			case !p.ready:
				j.ask(id)
			}
			if len(j.formed) > epochs {
				return
			}
		}
		if len(j.history) == before {
			if j.wakeAt(j.now) == never {
				break
			}
			j.tick()
		}
	}
	j.t.Fatalf("got neither an epoch nor a failure; %q; %s", j.history, j.state())
}

func TestAFailedSlotIsStartedAgainAfterAPauseThatDoubles(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 1, Max: 2, Restarts: 5}, 2)
	j.ask(0)
	j.ask(1)
	victim, pauses := 1, []time.Duration{}
	for range 5 {
		began := j.now
		j.end(victim, true)
		for j.slots[1].process == noProcess {
			j.tick()
		}
		pauses = append(pauses, j.now-began)
		victim = j.slots[1].process
	}
	s := time.Second
	if want := []time.Duration{0, s, 2 * s, 4 * s, 4 * s}; !slices.Equal(pauses, want) {
		t.Errorf("pauses: got %v, want %v", pauses, want)
	}
	j.end(victim, true)
	if got := j.alive(); got != 1 {
		t.Errorf("after all restarts: got %d processes to run, want 1", got)
	}
}

// A rank that computes for long is not killed because a newcomer waits, but only because other
// members of its epoch wait.
func TestAMemberIsKilledOnlyWhenOtherMembersWaitTooLong(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 1, Max: 3, Discovery: "x"}, 2)
	j.ask(0)
	j.ask(1)
	j.available([]int{3})
	j.apply("3 slots")
	j.ask(2)
	if at := j.wakeAt(j.now); at != never || !j.waiting() {
		t.Errorf("with a newcomer: got %v and waiting %v, want no deadline, and true", at, j.waiting())
	}
	j.ask(0)
	j.tick()
	if !j.signalled[1] || j.signalled[0] || j.signalled[2] || j.now != j.waitLimit {
		t.Errorf("at %v: got %v killed, want process 1 after %v", j.now, j.signalled, j.waitLimit)
	}
	j.end(1, true)
	if want := []int{0, 2}; !slices.Equal(j.formed[1], want) {
		t.Errorf("members: got %v, want %v", j.formed[1], want)
	}
}

// When a rank has finished, no process may be started any more, and processes that were never ranks
// must be told to end.
func TestAJobThatFinishesStartsNoProcess(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 1, Max: 3, Restarts: 3, Discovery: "x"}, 2)
	j.ask(0)
	j.ask(1)
	j.available([]int{3})
	j.apply("3 slots")
	j.end(0, false)
	if !j.signalled[2] || j.signalled[1] {
		t.Errorf("told to end: got %v, want process 2", j.signalled)
	}
	if j.broken {
		t.Error("the end of a rank that has finished counts as a change")
	}
	j.end(2, true)
	j.end(1, true)
	if got := j.alive(); got != 0 || j.next != 3 {
		t.Errorf("got %d processes to run and %d started, want 0 and 3", got, j.next)
	}
}

func TestAJobFailsWhenTooFewRanksAreLeft(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 2, Max: 3}, 3)
	for id := range 3 {
		j.ask(id)
	}
	j.end(0, true)
	if j.failed != "" {
		t.Errorf("with 2 of at least 2: got %q", j.failed)
	}
	j.end(1, true)
	if j.failed == "" {
		t.Error("with 1 of at least 2: got no failure")
	}
	// With a discovery script, slots may be added, so the job fails only when the ranks have waited
	// too long.
	j = newJobModel(t, Elastic{Min: 2, Max: 3, Discovery: "x"}, 2)
	j.ask(0)
	j.ask(1)
	j.end(1, true)
	j.ask(0)
	if j.failed != "" {
		t.Errorf("before the time: got %q", j.failed)
	}
	j.tick()
	if j.failed == "" {
		t.Error("after the time: got no failure")
	}
}

// The processes of a program that never calls Init end at different times. Such an end fails the
// job only if another process waits in Init.
func TestEndsBeforeInitFailAJobOnlyIfAProcessWaits(t *testing.T) {
	for _, failed := range []bool{false, true} {
		j := newJobModel(t, Elastic{Min: 3, Max: 3}, 3)
		j.end(0, failed)
		if j.failed != "" {
			t.Errorf("nobody waits: got %q", j.failed)
		}
		j.ask(1)
		if j.failed == "" {
			t.Error("process 1 waits: got no failure")
		}
	}
}

// A job that only shrinks after losses begins with all its ranks, or not at all.
func TestTheFirstEpochNeedsAllRanks(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 1, Max: 3, First: 3}, 3)
	j.ask(0)
	j.ask(1)
	j.end(2, true)
	if len(j.formed) != 0 || !strings.Contains(j.failed, "got 2, want at least 3 (--min-np)") {
		t.Errorf("got epochs %v and failure %q, want none, and one that says how many ranks are needed", j.formed, j.failed)
	}
	j = newJobModel(t, Elastic{Min: 1, Max: 3, First: 3}, 3)
	for id := range 3 {
		j.ask(id)
	}
	j.end(2, true)
	j.ask(0)
	j.ask(1)
	if len(j.formed) != 2 {
		t.Errorf("after a loss: got epochs %v, want two; failure %q", j.formed, j.failed)
	}
}

// A process that replaces one that was killed as overdue must have the whole waitLimit, from its
// own start.
func TestANewProcessIsWaitedForFromItsStart(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 2, Max: 2, Restarts: 1}, 2)
	j.ask(0)
	j.tick()
	if !j.signalled[1] {
		t.Fatal("process 1 was not killed")
	}
	j.now += time.Second
	j.end(1, true)
	if j.signalled[2] || j.wakeAt(j.now) != j.now+j.waitLimit {
		t.Errorf("the new process: got signalled %v and a deadline at %v, want %v", j.signalled[2], j.wakeAt(j.now), j.now+j.waitLimit)
	}
}

// All members end, and two new processes take their places. One of the two asks, and the other
// never does. The process that asks must wait no longer than a member would.
func TestAfterTheLastMemberNewProcessesWaitForALimitedTime(t *testing.T) {
	for _, asksFirst := range []bool{true, false} {
		j := newJobModel(t, Elastic{Min: 2, Max: 2, Restarts: 3}, 2)
		j.ask(0)
		j.ask(1)
		j.end(1, true)
		if asksFirst {
			j.ask(2) // while member 0 runs
		}
		j.end(0, true)
		if !asksFirst {
			j.ask(2)
		}
		j.tick()
		if !j.signalled[3] || j.signalled[2] || j.now != j.waitLimit {
			t.Errorf("asks first %v: at %v got %v killed, want process 3 after %v", asksFirst, j.now, j.signalled, j.waitLimit)
		}
	}
}

// A member asks, and ends. Nobody waits any more, so nobody is killed.
func TestMembersAreNotLateForAProcessThatHasEnded(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 1, Max: 3}, 3)
	for id := range 3 {
		j.ask(id)
	}
	j.ask(0)
	j.end(0, true)
	if at := j.wakeAt(j.now); at != never {
		t.Errorf("got a deadline at %v, want none", at)
	}
	j.now += time.Second
	j.ask(1)
	if at := j.wakeAt(j.now); at != j.now+j.waitLimit {
		t.Errorf("got a deadline at %v, want %v", at, j.now+j.waitLimit)
	}
}

// All slots of a host are equivalent. While a host has a slot for each of its processes, no process
// is told to end, whichever slot it was started in.
func TestFewerSlotsEndOnlyAsManyProcesses(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 2, Max: 4, Discovery: "x"}, 4)
	for id := range 4 {
		j.ask(id)
	}
	j.end(0, true)
	j.available([]int{3})
	j.apply("3 slots")
	if len(j.signalled) != 0 {
		t.Errorf("3 processes and 3 slots: got %v told to end, want none", j.signalled)
	}
	j.available([]int{2})
	j.apply("2 slots")
	if !j.signalled[3] || len(j.signalled) != 1 {
		t.Errorf("3 processes and 2 slots: got %v told to end, want process 3", j.signalled)
	}
	j.restarts = 1
	if got := j.pending(); len(got) != 0 {
		t.Errorf("2 processes and 2 slots: got starts in slots %v, want none", got)
	}
	j.end(3, true)
	j.end(2, true)
	if j.alive() != 2 || len(j.processes) != 2 {
		t.Errorf("after the end of process 2: got %d processes, and %d that run, want a new one", j.alive(), len(j.processes))
	}
}

// hosts returns the host of each process that may stay, in the order of the slots.
func (j *jobModel) hosts() (hosts []int) {
	for _, p := range j.kept() {
		hosts = append(hosts, j.slots[p.slot].host)
	}
	return hosts
}

// A script that finds hosts decides how many processes each of them runs. A host that is taken away
// and comes back gets processes without a restart.
func TestProcessesRunOnTheHostsThatAreFound(t *testing.T) {
	j := newJobModelOn(t, Elastic{Min: 1, Max: 4, Discovery: "x"}, 0, 1)
	for _, step := range []struct{ slots, hosts []int }{
		{[]int{1, 1, 1}, []int{0, 1, 2}},
		{[]int{1, 0, 1}, []int{0, 2}},
		{[]int{1, 1, 3}, []int{0, 1, 2, 2}}, // at most 4
		{[]int{2, 1, 0}, []int{0, 1, 0}},
	} {
		j.available(step.slots)
		j.apply("slots %v", step.slots)
		if got := j.hosts(); !slices.Equal(got, step.hosts) {
			t.Errorf("slots %v: got processes on hosts %v, want %v", step.slots, got, step.hosts)
		}
		for id := range j.signalled {
			j.end(id, true)
		}
	}
}

// Each failure of a host's process uses up a restart. A host comes back only while restarts are
// left, and a new host gets processes without a restart.
func TestALostHostComesBackWhileRestartsAreLeft(t *testing.T) {
	j := newJobModelOn(t, Elastic{Min: 1, Max: 4, Restarts: 1, Discovery: "x"}, 0, 1)
	for range 2 {
		j.end(slices.Max(slices.Collect(maps.Keys(j.processes))), true)
		j.available([]int{1, 0})
		j.apply("lost")
		if got := j.hosts(); !slices.Equal(got, []int{0}) {
			t.Fatalf("got processes on hosts %v, want 0", got)
		}
		j.available([]int{1, 1})
		j.apply("back")
	}
	if got := j.hosts(); !slices.Equal(got, []int{0}) || j.restarts != 0 {
		t.Errorf("after the second loss: got processes on hosts %v, and %d restarts, want 0 and 0", got, j.restarts)
	}
	j.available([]int{1, 1, 1})
	j.apply("a new host")
	if got := j.hosts(); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("got processes on hosts %v, want 0 and 2", got)
	}
}

// If the only host of a job is lost, the job waits for the host for waitLimit, as it waits for a
// process, if restarts are left.
func TestAJobWaitsForItsOnlyHost(t *testing.T) {
	for _, restarts := range []int{0, 1} {
		for _, back := range []bool{true, false} {
			j := newJobModelOn(t, Elastic{Min: 1, Max: 4, Restarts: restarts, Discovery: "x"}, 1)
			j.ask(0)
			j.ended(0, true, j.now)
			j.available([]int{0, 0})
			j.apply("lost")
			if got := j.isDeserted(); got != (restarts > 0) || j.failed != "" {
				t.Fatalf("%d restarts: got %v, %q, want the job to wait for a host only if a process may be started", restarts, got, j.failed)
			}
			if restarts == 0 {
				continue
			}
			if back {
				j.now += j.waitLimit - 1
				j.available([]int{0, 1})
				j.apply("back")
				if at := j.wakeAt(j.now); j.isDeserted() || len(j.processes) != 1 || at != never {
					t.Errorf("got %d processes, and a deadline at %v, want 1 and none", len(j.processes), at)
				}
				continue
			}
			for j.failed == "" && j.wakeAt(j.now) != never {
				j.tick()
			}
			if j.isDeserted() || j.now != j.waitLimit || !strings.Contains(j.failed, "got 0, want at least 1 (--min-np)") {
				t.Errorf("after %v: got %q, want the end of the job after %v", j.now, j.failed, j.waitLimit)
			}
		}
	}
}

// If the only host is lost before the first epoch, the job ends after waitLimit, too.
func TestAJobThatHasNotBegunWaitsForItsOnlyHost(t *testing.T) {
	j := newJobModelOn(t, Elastic{Min: 1, Max: 4, Restarts: 1, Discovery: "x"}, 1)
	j.ended(0, true, j.now)
	j.available([]int{0, 0})
	j.apply("lost")
	for j.failed == "" && j.wakeAt(j.now) != never {
		j.tick()
	}
	if j.now != j.waitLimit || j.failed == "" {
		t.Errorf("after %v: got %q, want the end of the job after %v", j.now, j.failed, j.waitLimit)
	}
}

// A host of three slots gets one slot, and then two. Slot 0 has failed, so only slot 1 may have a
// process: slot 2, which is gone, must not replace slot 0.
func TestASlotThatIsRemovedGetsNoProcess(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 1, Max: 3, Discovery: "x"}, 3)
	j.end(0, true)
	j.available([]int{1})
	j.apply("1 slot")
	j.end(2, true) // it was told to end
	j.available([]int{2})
	j.apply("2 slots")
	if got := j.alive(); got != 1 {
		t.Errorf("got %d processes to run, want 1: slot 0 has failed, and slot 2 is gone", got)
	}
}

// Without a discovery script, the slots of a lost host move to other hosts, as far as the slots of
// these hosts and the restarts suffice.
func TestSlotsOfALostHostMove(t *testing.T) {
	j := newJobModelOn(t, Elastic{Min: 1, Max: 3, Restarts: 5}, 0, 1, 1)
	j.end(1, true)
	j.end(3, true) // the restarted one
	j.end(2, true)
	j.available([]int{2, 0})
	j.apply("lost")
	for range 3 {
		if j.wakeAt(j.now) != never {
			j.tick()
		}
	}
	if got := j.hosts(); !slices.Equal(got, []int{0, 0}) || j.slots[1].process == noProcess {
		t.Errorf("got processes on hosts %v, want 0 and 0, one of them in slot 1", got)
	}
	if used := 5 - j.restarts; used != 3 {
		t.Errorf("got %d restarts, want 3", used)
	}
	if got := j.slots[1].local; got != 1 {
		t.Errorf("the slot that has moved has number %d on its host, want 1", got)
	}
}

// No epoch is formed with a process whose context has ended. The other processes wait for this
// process as for a process that has not asked. If a process withdraws after the epoch was formed,
// the epoch is broken.
func TestAProcessThatWithdrawsIsNotWaiting(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 1, Max: 2}, 2)
	j.ask(0)
	j.withdraw(0)
	if at := j.wakeAt(j.now); at != never {
		t.Errorf("nobody waits: got a deadline at %v", at)
	}
	j.ask(1)
	if at := j.wakeAt(j.now); len(j.formed) != 0 || at != j.now+j.waitLimit {
		t.Errorf("got epochs %v and a deadline at %v, want none, and one after %v", j.formed, at, j.waitLimit)
	}
	j.ask(0)
	j.withdraw(1)
	if len(j.formed) != 1 || !j.broken {
		t.Errorf("withdrawn too late: got epochs %v, broken %v, want one that is broken", j.formed, j.broken)
	}
}

func TestProcessesForWhichOthersWaitAreNamedOnce(t *testing.T) {
	j := newJobModel(t, Elastic{Min: 1, Max: 3}, 3)
	j.waitLimit = time.Hour
	j.ask(1)
	j.tick()
	j.ask(0)
	if want := []int{0, 2}; !slices.Equal(j.named, want) || j.now != stallAfter {
		t.Errorf("at %v: got %v, want %v after %v", j.now, j.named, want, stallAfter)
	}
}

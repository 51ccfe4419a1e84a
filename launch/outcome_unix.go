//go:build unix

package launch

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
)

// noticeTime is the time within which a rank usually learns of another rank's death. The observed
// order of two failures at most this far apart does not show which came first.
const noticeTime = 100 * time.Millisecond

// maxQuoteText bounds the bytes of one quotation in a verdict, and maxReports the number of
// different errors that it quotes.
const (
	maxQuoteText = 300
	maxReports   = 8
)

// outcome returns the exit code and, if something went wrong, a verdict of two lines: what
// happened, and what the other ranks have reported. The first cause that applies in this table
// decides:
//
//	cause                               code             first line of the verdict
//	a program cannot be started         126 or 127       cannot start prog: ...
//	--timeout has passed                124              the job has not ended within ...
//	ranks waited in Init for a rank     1                rank 3 (prog, process 7) exited with ..., and
//	that had ended without it                             never called Init
//	a rank aborted by PMI, or broke     its code, or 1   rank 3 (prog, process 7) aborted the job ...
//	it off, and did not fail by itself
//	a rank has failed by itself         its code, 128+n  rank 3 (prog, process 7) exited with ...
//	  with --enable-recovery, and       0                the same
//	  another rank exited with 0
//	too few ranks were left for the     as above, or 1   ranks left: got 1, want at least 2 ...
//	next epoch, and none had finished
//	the user, or the context, ended it  128+signal       the job was asked to end (SIGINT), ...
//	none                                0                none
func (r *run) outcome() Outcome {
	culprit, pmiFailure := culprit(r.ranks), r.pmi.Failure()
	switch {
	// The cases are in the order of causes. An event that concerns the whole job comes before the
	// failures of ranks that it has caused.
	case r.startErr != nil:
		return Outcome{Code: r.startErr.code, Broken: true, Verdict: []string{
			fmt.Sprintf("cannot start %v", r.startErr), fmt.Sprintf("%d of %d ranks had started, and were ended", r.countStarted(), len(r.ranks))}}
	case r.policy.timedOut:
		return Outcome{Code: exitTimeout, Verdict: []string{
			fmt.Sprintf("the job has not ended within %v (--timeout), and was ended", r.job.Timeout), r.reportsOfOthers(nil)}}
	case r.absent != nil:
		return Outcome{Code: 1, Verdict: []string{
			r.absent.describe() + ", and never called Init, in which other ranks waited for it", r.reportsOfOthers(nil)}}
	case pmiFailure != nil && pmiFailure.Code != 0 && !r.ranks[pmiFailure.Rank].failed():
		return Outcome{Code: pmiFailure.Code, Verdict: []string{
			r.ranks[pmiFailure.Rank].describeAs(pmiFailure.Text), r.reportsOfOthers(r.ranks[pmiFailure.Rank])}}
	case culprit != nil:
		first := culprit.describe()
		if r.endSignal != 0 {
			first = fmt.Sprintf("the job was asked to end (%s): %s", unix.SignalName(r.endSignal), first)
		}
		if r.failed != "" {
			first = r.failed + ": " + first
		}
		code := exitCode(culprit.status)
		if r.job.Recovery && r.endSignal == 0 && r.failed == "" && slices.ContainsFunc(r.ranks, func(k *rank) bool { return !k.notOK() }) {
			code = 0
		}
		return Outcome{Code: code, Verdict: []string{first, r.reportsOfOthers(culprit)}}
	case r.failed != "":
		return Outcome{Code: 1, Verdict: []string{r.failed, r.reportsOfOthers(nil)}}
	// No rank failed by itself, but some ranks did not exit with 0: the user or the context asked for
	// the end, and the launcher ended them.
	case slices.ContainsFunc(r.ranks, (*rank).notOK):
		sig := cmp.Or(r.endSignal, syscall.SIGTERM)
		return Outcome{Code: 128 + int(sig), Verdict: []string{
			fmt.Sprintf("the job was asked to end (%s), and was ended", unix.SignalName(sig)), r.reportsOfOthers(nil)}}
	}
	return Outcome{}
}

// countStarted returns how many ranks have been started.
func (r *run) countStarted() (n int) {
	for _, k := range r.ranks {
		if k.pid != 0 {
			n++
		}
	}
	return n
}

// notOK reports whether a rank still runs, or has not exited with 0.
func (k *rank) notOK() bool { return !k.ended || k.status != 0 }

// failed reports whether a rank has failed by itself, and was not ended by the launcher.
func (k *rank) failed() bool { return k.ended && k.status != 0 && !k.killed }

// exitCode returns the exit code that a shell would return: the code, or 128 plus the signal.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// culprit returns the rank whose failure ended the job, or nil if no rank failed by itself. It
// collects candidates and chooses the most likely one:
//
//  1. The rank that failed first is a candidate. Ranks that failed at most noticeTime later are
//     candidates, too.
//  2. If a candidate reports a rank as lost, that rank is a candidate, however much later its end
//     was seen. A rank's connections end before the kernel has ended its process. On a busy machine
//     other ranks learn of the lost connections, and exit, long before that. Likewise, a host that
//     is connected through another host is lost with that other host, and may be seen to be lost
//     first.
//  3. Candidates that died of a signal come first, together with those whose host was lost.
//     Candidates that failed by themselves come next, together with those whose host was lost only
//     because it was connected through another host. Candidates whose errors another rank may have
//     caused come last.
//
// For example, rank 2 is killed. Ranks 0 and 1 fail with "peer lost [rank 2]" and exit with 1. Only
// then does the kernel report rank 2. By time alone, rank 0 would be the culprit. Its error names
// rank 2, so rank 2 is the culprit.
func culprit(ranks []*rank) *rank {
	var failed []*rank
	for _, k := range ranks {
		if k.failed() {
			failed = append(failed, k)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	slices.SortStableFunc(failed, func(a, b *rank) int { return cmp.Compare(a.endedAt, b.endedAt) })
	end := failed[0].endedAt + noticeTime
	candidates := failed[:0:0]
	for _, k := range failed {
		// The loop runs in the order of time, so each rank that a candidate blames is found after
		// that candidate.
		if k.endedAt <= end || slices.ContainsFunc(candidates, func(by *rank) bool { return by.blames(k) }) {
			candidates = append(candidates, k)
		}
	}
	return slices.MinFunc(candidates, func(a, b *rank) int { return cmp.Compare(a.blameOrder(), b.blameOrder()) })
}

// blameOrder returns a sort key. It is lowest for the most likely culprit:
//
//   - 0 if a signal killed the candidate, or if its own host was lost
//   - 1 if the candidate failed by itself, or if its host was lost only because the host through
//     which it was connected was lost
//   - 2 if the candidate may have failed because of another rank
func (k *rank) blameOrder() int {
	switch {
	case wayTo(k.lost) != "":
		return 1
	case k.status.Signaled() || k.lost != nil:
		return 0
	}
	switch _, kind := k.lastError.quote(); kind {
	// Another rank causes, or may cause, errors of these kinds.
	case fault.PeerLost, fault.LinkLost, fault.Revoked, fault.Closed, fault.Timeout:
		return 2
	}
	return 1
}

// blames reports whether k failed because of other. In the first case, k ended with an error whose
// first lost rank is other. In the second case, the host of k was lost because it was connected
// through the host of other, and that host was lost.
func (k *rank) blames(other *rank) bool {
	if k.lost != nil {
		return other.lost != nil && other.host.name() == wayTo(k.lost)
	}
	line, kind := k.lastError.quote()
	if kind != fault.PeerLost {
		return false
	}
	// An error reads "op: rank 0: peer lost [rank 2 on host-b ...]".
	_, rest, _ := strings.Cut(line, fmt.Sprintf(": %v [rank ", kind))
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	return end > 0 && rest[:end] == strconv.Itoa(other.id)
}

// describe returns the rank's number, how the rank ended, and its last error.
func (k *rank) describe() string {
	if k.lost != nil {
		return k.describeAs(fmt.Sprintf("was lost after %v with its host %v", k.endedAt.Round(time.Millisecond), k.lost))
	}
	was := ""
	if k.status.Signaled() {
		was = "was "
	}
	return k.describeAs(fmt.Sprintf("%s%s after %v", was, describeStatus(k.status), k.endedAt.Round(time.Millisecond)))
}

// describeAs returns the rank's number and process, the text did, and its last error.
func (k *rank) describeAs(did string) string {
	process := fmt.Sprintf(", process %d", k.pid)
	if k.pid == 0 {
		process = "" // the host was lost before it reported the process
	}
	s := fmt.Sprintf("rank %d (%s%s%s) %s", k.id, filepath.Base(k.program), process, onHost(k.host), did)
	if line, _ := k.lastError.quote(); line != "" {
		s += ": " + quoted(line)
	}
	return s
}

// describeStatus describes an exit status in words that can follow both "rank 3" and "ranks 3, 4".
func describeStatus(w syscall.WaitStatus) string {
	if !w.Signaled() {
		return fmt.Sprintf("exited with code %d", w.ExitStatus())
	}
	s := fmt.Sprintf("killed by signal %d (%s)", w.Signal(), unix.SignalName(w.Signal()))
	if w.CoreDump() {
		s += ", core dumped,"
	}
	return s
}

// reportsOfOthers names the ranks that left early, and quotes the error of each failed rank except
// the culprit. Errors that differ only in the number of the reporting rank are quoted once.
func (r *run) reportsOfOthers(culprit *rank) string {
	ranksBy := make(map[string][]int)
	var order []string
	for _, k := range r.ranks {
		if k == culprit || k.pid == 0 || !k.notOK() {
			continue
		}
		v := k.report()
		if ranksBy[v] == nil {
			order = append(order, v)
		}
		ranksBy[v] = append(ranksBy[v], k.id)
	}
	parts := leftEarly(r.ranks, culprit)
	if len(order)+len(parts) == 0 {
		return "no other rank reported an error"
	}
	for i, v := range order {
		if i == maxReports {
			parts = append(parts, fmt.Sprintf("and %d other errors", len(order)-i))
			break
		}
		parts = append(parts, rankList(ranksBy[v])+v)
	}
	return strings.Join(parts, "; ")
}

// leftEarly names the ranks that had exited with 0 before the culprit failed, if another rank may
// have caused the culprit's error. These ranks are the likely cause, although exiting with 0 is not
// a failure. The launcher may see their end after the culprit's, by at most noticeTime. For a rank
// that the culprit reports as lost, there is no such limit.
func leftEarly(ranks []*rank, culprit *rank) (parts []string) {
	if culprit == nil || culprit.blameOrder() < 2 {
		return nil
	}
	var early []int
	for _, k := range ranks {
		if k.ended && k.status == 0 && (k.endedAt <= culprit.endedAt+noticeTime || culprit.blames(k)) {
			early = append(early, k.id)
		}
	}
	if len(early) > 0 {
		parts = append(parts, rankList(early)+" had exited with code 0 before")
	}
	return parts
}

// report describes how a failed rank ended, as text that follows the rank's number. It prefers
// an error of this module to the exit code, because the error says more.
func (k *rank) report() string {
	state := " " + describeStatus(k.status)
	switch {
	case k.lost != nil:
		state = " disappeared with host " + k.host.name()
		if way := wayTo(k.lost); way != "" {
			state += ", reached through " + way
		}
	case !k.ended:
		state = " was still running after KILL"
	case k.killed:
		state = " did not end in time"
	}
	line, kind := k.lastError.quote()
	if line == "" {
		return state
	}
	if kind != 0 {
		line = strings.Replace(line, fmt.Sprintf(": rank %d: ", k.id), ": ", 1)
		if !k.killed {
			return ": " + quoted(line)
		}
	}
	return state + ": " + quoted(line)
}

// timestamp matches the time that package log and many other loggers write before a line.
var timestamp = regexp.MustCompile(`^\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d\S*\s+`)

// quoted returns a line in the form that a verdict quotes: without its time, printable, and of
// bounded length.
func quoted(line string) string {
	line = timestamp.ReplaceAllString(line, "")
	if len(line) > maxQuoteText {
		line = strings.ToValidUTF8(line[:maxQuoteText], "") + "…"
	}
	return fmt.Sprintf("%q", line)
}

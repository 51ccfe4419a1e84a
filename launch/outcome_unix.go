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

// simultaneous is how close two failures may be for their order to mean nothing: a
// rank mostly learns of another's death within less.
const simultaneous = 100 * time.Millisecond

// maxSaid and maxVoices bound a verdict: the bytes of one quotation, and how
// many different ones there are.
const (
	maxQuoteText = 300
	maxReports   = 8
)

// outcome is the exit code and, when something went wrong, the two lines that
// say who failed and what the others had to say.
func (r *run) outcome() Outcome {
	culprit := culprit(r.ranks)
	switch {
	case r.startErr != nil:
		return Outcome{Code: r.startErr.code, Broken: true, Verdict: []string{
			fmt.Sprintf("cannot start %v", r.startErr), fmt.Sprintf("%d of %d ranks had started, and have been ended", r.started(), len(r.ranks))}}
	case r.policy.timedOut:
		return Outcome{Code: exitTimeout, Verdict: []string{
			fmt.Sprintf("the job has not ended within %v (--timeout), and has been ended", r.job.Timeout), r.reportsOfOthers(nil)}}
	case culprit != nil:
		first := culprit.describe()
		if r.endSignal != 0 {
			first = fmt.Sprintf("the job was asked to end (%s): %s", unix.SignalName(r.endSignal), first)
		}
		return Outcome{Code: exitCode(culprit.status), Verdict: []string{first, r.reportsOfOthers(culprit)}}
	case slices.ContainsFunc(r.ranks, (*rank).notOK):
		sig := cmp.Or(r.endSignal, syscall.SIGTERM)
		return Outcome{Code: 128 + int(sig), Verdict: []string{
			fmt.Sprintf("the job was asked to end (%s), and was ended", unix.SignalName(sig)), r.reportsOfOthers(nil)}}
	}
	return Outcome{}
}

func (r *run) started() (n int) {
	for _, k := range r.ranks {
		if k.pid != 0 {
			n++
		}
	}
	return n
}

// notOK tells whether a rank failed because we ended it, or runs still.
func (k *rank) notOK() bool { return !k.ended || k.status != 0 }

// exitCode is a shell's: 128 more than the signal.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// culprit is the rank that brought the job down: the first that failed of its
// own accord; nil when none did. Among those that failed within settle of the
// first, a rank that died of a signal comes before one that exited, and one
// that blames nobody before one whose error blames another rank. With them counts
// whom one of them has called lost, however much later that was seen to end: a
// rank's connections end before the kernel is done with it, and on a busy machine
// others have heard of that, and exited, long before.
func culprit(ranks []*rank) *rank {
	var failed []*rank
	for _, k := range ranks {
		if k.ended && k.status != 0 && !k.killed {
			failed = append(failed, k)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	slices.SortStableFunc(failed, func(a, b *rank) int { return cmp.Compare(a.endedAt, b.endedAt) })
	end := failed[0].endedAt + simultaneous
	candidates := failed[:0:0]
	for _, k := range failed {
		if k.endedAt <= end || slices.ContainsFunc(candidates, func(by *rank) bool { return by.blames(k) }) {
			candidates = append(candidates, k)
		}
	}
	return slices.MinFunc(candidates, func(a, b *rank) int { return cmp.Compare(a.blameOrder(), b.blameOrder()) })
}

// blameOrder orders ranks that failed at the same time, the likeliest culprit
// first.
func (k *rank) blameOrder() int {
	if k.status.Signaled() {
		return 0
	}
	switch _, kind := k.lastError.quote(); kind {
	case fault.PeerLost, fault.LinkLost, fault.Revoked, fault.Closed, fault.Timeout:
		return 2
	}
	return 1
}

// blames reports whether a rank ended with an error that says that another is lost.
func (k *rank) blames(other *rank) bool {
	line, kind := k.lastError.quote()
	if kind != fault.PeerLost {
		return false
	}
	_, rest, _ := strings.Cut(line, fmt.Sprintf(": %v [rank ", kind))
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	return end > 0 && rest[:end] == strconv.Itoa(other.id)
}

// describe says who a rank was and how it ended, in its own words too.
func (k *rank) describe() string {
	was := ""
	if k.status.Signaled() {
		was = "was "
	}
	s := fmt.Sprintf("rank %d (%s, process %d) %s%s after %v", k.id, filepath.Base(k.program), k.pid, was, describeStatus(k.status), k.endedAt.Round(time.Millisecond))
	if line, _ := k.lastError.quote(); line != "" {
		s += ": " + quoted(line)
	}
	return s
}

// describeStatus reads well after one rank and after several.
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

// reportsOfOthers quotes the error of each rank but the culprit. Ranks that say the same
// but for their own number are quoted once.
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

// leftEarly names the ranks that had exited with 0 when the culprit failed for
// want of another rank: they are the likely cause, though it is no failure. As in
// culprit, their ends may be seen a little after that of the rank that missed them,
// or, where it calls them lost, at any time.
func leftEarly(ranks []*rank, culprit *rank) (parts []string) {
	if culprit == nil || culprit.blameOrder() < 2 {
		return nil
	}
	var early []int
	for _, k := range ranks {
		if k.ended && k.status == 0 && (k.endedAt <= culprit.endedAt+simultaneous || culprit.blames(k)) {
			early = append(early, k.id)
		}
	}
	if len(early) > 0 {
		parts = append(parts, rankList(early)+" had exited with code 0 before")
	}
	return parts
}

// report is what a rank that did not end well has to say, to stand after its
// number. An error of this module tells more than the exit code beside it.
func (k *rank) report() string {
	state := " " + describeStatus(k.status)
	switch {
	case !k.ended:
		state = " survived even KILL"
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

// timestamp is what log and many other loggers put before a line.
var timestamp = regexp.MustCompile(`^\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d\S*\s+`)

// quoted is a line as part of a verdict: without its time, printable, bounded.
func quoted(line string) string {
	line = timestamp.ReplaceAllString(line, "")
	if len(line) > maxQuoteText {
		line = strings.ToValidUTF8(line[:maxQuoteText], "") + "…"
	}
	return fmt.Sprintf("%q", line)
}

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

// settle is how close two failures may be for their order to mean nothing: a
// rank mostly learns of another's death within less.
const settle = 100 * time.Millisecond

// maxSaid and maxVoices bound a verdict: the bytes of one quotation, and how
// many different ones there are.
const (
	maxSaid   = 300
	maxVoices = 8
)

// outcome is the exit code and, when something went wrong, the two lines that
// say who failed and what the others had to say.
func (r *run) outcome() Outcome {
	culprit := culprit(r.ranks)
	switch {
	case r.broken != nil:
		return Outcome{Code: r.broken.code, Broken: true, Verdict: []string{
			fmt.Sprintf("cannot start %v", r.broken), fmt.Sprintf("%d of %d ranks had been started, and were ended", r.started(), len(r.ranks))}}
	case r.policy.timedOut:
		return Outcome{Code: exitTimeout, Verdict: []string{
			fmt.Sprintf("the job did not end within %v (--timeout); it was ended", r.job.Timeout), r.others(nil)}}
	case culprit != nil:
		first := culprit.ending()
		if r.asked != 0 {
			first = fmt.Sprintf("the job was asked to end (%s): %s", unix.SignalName(r.asked), first)
		}
		return Outcome{Code: exitCode(culprit.how), Verdict: []string{first, r.others(culprit)}}
	case slices.ContainsFunc(r.ranks, (*rank).unfinished):
		sig := cmp.Or(r.asked, syscall.SIGTERM)
		return Outcome{Code: 128 + int(sig), Verdict: []string{
			fmt.Sprintf("the job was asked to end (%s), and was ended", unix.SignalName(sig)), r.others(nil)}}
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

// unfinished tells whether a rank failed because we ended it, or runs still.
func (k *rank) unfinished() bool { return !k.ended || k.how != 0 }

// exitCode is a shell's: 128 more than the signal.
func exitCode(how syscall.WaitStatus) int {
	if how.Signaled() {
		return 128 + int(how.Signal())
	}
	return how.ExitStatus()
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
		if k.ended && k.how != 0 && !k.forced {
			failed = append(failed, k)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	slices.SortStableFunc(failed, func(a, b *rank) int { return cmp.Compare(a.at, b.at) })
	end := failed[0].at + settle
	soon := failed[:0:0]
	for _, k := range failed {
		if k.at <= end || slices.ContainsFunc(soon, func(by *rank) bool { return by.lost(k) }) {
			soon = append(soon, k)
		}
	}
	return slices.MinFunc(soon, func(a, b *rank) int { return cmp.Compare(a.innocence(), b.innocence()) })
}

// innocence orders ranks that failed at the same time, the likeliest culprit
// first.
func (k *rank) innocence() int {
	if k.how.Signaled() {
		return 0
	}
	switch _, kind := k.said.quote(); kind {
	case fault.PeerLost, fault.LinkLost, fault.Revoked, fault.Closed, fault.Timeout:
		return 2
	}
	return 1
}

// lost reports whether a rank ended with an error that says that another is lost.
func (k *rank) lost(other *rank) bool {
	line, kind := k.said.quote()
	if kind != fault.PeerLost {
		return false
	}
	_, blamed, _ := strings.Cut(line, fmt.Sprintf(": %v [rank ", kind))
	end := strings.IndexFunc(blamed, func(r rune) bool { return r < '0' || r > '9' })
	return end > 0 && blamed[:end] == strconv.Itoa(other.id)
}

// ending says who a rank was and how it ended, in its own words too.
func (k *rank) ending() string {
	was := ""
	if k.how.Signaled() {
		was = "was "
	}
	s := fmt.Sprintf("rank %d (%s, process %d) %s%s after %v", k.id, filepath.Base(k.program), k.pid, was, how(k.how), k.at.Round(time.Millisecond))
	if line, _ := k.said.quote(); line != "" {
		s += ": " + quoted(line)
	}
	return s
}

// how reads well after one rank and after several.
func how(w syscall.WaitStatus) string {
	if !w.Signaled() {
		return fmt.Sprintf("exited with code %d", w.ExitStatus())
	}
	s := fmt.Sprintf("killed by signal %d (%s)", w.Signal(), unix.SignalName(w.Signal()))
	if w.CoreDump() {
		s += ", core dumped,"
	}
	return s
}

// others quotes the error of each rank but the culprit. Ranks that say the same
// but for their own number are quoted once.
func (r *run) others(culprit *rank) string {
	voices := make(map[string][]int)
	var order []string
	for _, k := range r.ranks {
		if k == culprit || k.pid == 0 || !k.unfinished() {
			continue
		}
		v := k.voice()
		if voices[v] == nil {
			order = append(order, v)
		}
		voices[v] = append(voices[v], k.id)
	}
	parts := leftEarly(r.ranks, culprit)
	if len(order)+len(parts) == 0 {
		return "no other rank reported an error"
	}
	for i, v := range order {
		if i == maxVoices {
			parts = append(parts, fmt.Sprintf("and %d other errors", len(order)-i))
			break
		}
		parts = append(parts, rankList(voices[v])+v)
	}
	return strings.Join(parts, "; ")
}

// leftEarly names the ranks that had exited with 0 when the culprit failed for
// want of another rank: they are the likely cause, though it is no failure. As in
// culprit, their ends may be seen a little after that of the rank that missed them,
// or, where it calls them lost, at any time.
func leftEarly(ranks []*rank, culprit *rank) (parts []string) {
	if culprit == nil || culprit.innocence() < 2 {
		return nil
	}
	var early []int
	for _, k := range ranks {
		if k.ended && k.how == 0 && (k.at <= culprit.at+settle || culprit.lost(k)) {
			early = append(early, k.id)
		}
	}
	if len(early) > 0 {
		parts = append(parts, rankList(early)+" had exited with code 0 before")
	}
	return parts
}

// voice is what a rank that did not end well has to say, to stand after its
// number. An error of this module tells more than the exit code beside it.
func (k *rank) voice() string {
	state := " " + how(k.how)
	switch {
	case !k.ended:
		state = " survived even KILL"
	case k.forced:
		state = " did not end in time"
	}
	line, kind := k.said.quote()
	if line == "" {
		return state
	}
	if kind != 0 {
		line = strings.Replace(line, fmt.Sprintf(": rank %d: ", k.id), ": ", 1)
		if !k.forced {
			return ": " + quoted(line)
		}
	}
	return state + ": " + quoted(line)
}

// stamp is what log and many other loggers put before a line.
var stamp = regexp.MustCompile(`^\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d\S*\s+`)

// quoted is a line as part of a verdict: without its time, printable, bounded.
func quoted(line string) string {
	line = stamp.ReplaceAllString(line, "")
	if len(line) > maxSaid {
		line = strings.ToValidUTF8(line[:maxSaid], "") + "…"
	}
	return fmt.Sprintf("%q", line)
}

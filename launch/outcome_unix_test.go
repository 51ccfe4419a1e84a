//go:build unix

package launch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/pmi"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// exitWith and diedOf return wait statuses in the encoding of Linux and the BSDs.
func exitWith(code int) syscall.WaitStatus       { return syscall.WaitStatus(code << 8) }
func diedOf(s syscall.Signal) syscall.WaitStatus { return syscall.WaitStatus(s) }
func lastErrorOf(text string) *lastError         { e := new(lastError); e.write([]byte(text)); return e }
func at(d time.Duration, k *rank) *rank          { k.endedAt, k.ended, k.pid = d, true, 100; return k }
func endedRank(how syscall.WaitStatus, s string) *rank {
	return &rank{status: how, lastError: lastErrorOf(s)}
}
func killedRank(how syscall.WaitStatus, s string) *rank {
	return &rank{status: how, lastError: lastErrorOf(s), killed: true}
}

const lostTo2 = "allreduce: rank 0: peer lost [rank 2]"

func TestCulpritIsTheFirstToFailOfItsOwnAccord(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		ranks []*rank
		want  int // -1 if there is no culprit
	}{
		"nobody":                {[]*rank{at(0, endedRank(0, ""))}, -1},
		"the first":             {[]*rank{at(500*ms, endedRank(exitWith(1), "")), at(0, endedRank(exitWith(2), "")), at(300*ms, endedRank(diedOf(9), ""))}, 1},
		"not whom we ended":     {[]*rank{at(0, killedRank(diedOf(15), "")), at(500*ms, endedRank(exitWith(2), ""))}, 1},
		"signal before code":    {[]*rank{at(0, endedRank(exitWith(1), "")), at(1*ms, endedRank(diedOf(9), ""))}, 1},
		"who blames no other":   {[]*rank{at(0, endedRank(exitWith(1), lostTo2)), at(1*ms, endedRank(exitWith(3), "bad input"))}, 1},
		"all blame another":     {[]*rank{at(1*ms, endedRank(exitWith(1), lostTo2)), at(0, endedRank(exitWith(1), lostTo2))}, 1},
		"much later is no tie":  {[]*rank{at(0, endedRank(exitWith(1), lostTo2)), at(time.Second, endedRank(diedOf(9), ""))}, 0},
		"whom the first lost":   {[]*rank{at(0, endedRank(exitWith(1), lostTo2)), at(time.Second, endedRank(diedOf(9), "")), at(time.Second, endedRank(diedOf(9), ""))}, 2},
		"whom others lost":      {[]*rank{at(time.Second, endedRank(exitWith(1), lostTo2)), at(0, endedRank(exitWith(3), "bad input")), at(time.Second, endedRank(diedOf(9), ""))}, 1},
		"lost, but ended by us": {[]*rank{at(0, endedRank(exitWith(1), lostTo2)), at(0, endedRank(0, "")), at(time.Second, killedRank(diedOf(9), ""))}, 0},
		"one that never ended":  {[]*rank{{status: 0, lastError: lastErrorOf("")}}, -1},
	} {
		for i, k := range c.ranks {
			k.id = i
		}
		got := -1
		if k := culprit(c.ranks); k != nil {
			got = k.id
		}
		if got != c.want {
			t.Errorf("%s: got rank %d, want %d", name, got, c.want)
		}
	}
}

// Host n3 is connected through host n2, and host n2 through host n1. When n1 is lost, the verdict
// must name n1, although the launcher has noticed the losses of n2 and n3 before that of n1.
func TestVerdictNamesTheHostOnTheWay(t *testing.T) {
	lostRank := func(host string, err error) *rank {
		k := endedRank(statusUnknown, "")
		k.host, k.lost = &remoteHost{hostName: host}, fmt.Errorf("%s: %w", host, err)
		return k
	}
	below := lostRank("n2", &remote.ThroughError{Host: "n1"})
	deeper := lostRank("n3", &remote.ThroughError{Host: "n2"})
	above := lostRank("n1", errors.New("it has been silent for 9s"))
	other := endedRank(exitWith(1), "allreduce: rank 3: peer lost [rank 1]")
	out := verdictOf(at(1*time.Second, deeper), at(2*time.Second, below), at(4*time.Second, above), at(1*time.Second, other))
	want := []string{
		"rank 2 (prog, process 100 on n1) was lost after 4s with its host n1: it has been silent for 9s",
		`rank 0 disappeared with host n3, reached through n2; rank 1 disappeared with host n2, reached through n1; rank 3: "allreduce: peer lost [rank 1]"`,
	}
	if out.Code != 255 || !slices.Equal(out.Verdict, want) {
		t.Errorf("got %d %q, want 255 %q", out.Code, out.Verdict, want)
	}
}

func verdictOf(ranks ...*rank) Outcome {
	for i, k := range ranks {
		k.id, k.program = i, "/bin/prog"
	}
	r := &run{job: &Job{Timeout: 5 * time.Second}, ranks: ranks, policy: newPolicy(len(ranks), 0, 0), pmi: pmi.NewServer("", nil, nil)}
	return r.outcome()
}

func TestVerdictNamesTheRankAndQuotesTheOthers(t *testing.T) {
	out := verdictOf(
		at(3*time.Second, endedRank(exitWith(1), "2026/10/02 10:00:00 "+lostTo2+"\n")),
		at(3*time.Second, endedRank(exitWith(1), "allreduce: rank 1: peer lost [rank 2]\n")),
		at(2*time.Second, endedRank(diedOf(9)|0x80, "")),
		at(1*time.Second, endedRank(0, "all fine")),
		at(3*time.Second, endedRank(exitWith(4), "")),
		at(9*time.Second, killedRank(diedOf(15), "waiting")),
	)
	want := []string{
		"rank 2 (prog, process 100) was killed by signal 9 (SIGKILL), core dumped, after 2s",
		`ranks 0, 1: "allreduce: peer lost [rank 2]"; rank 4 exited with code 4; rank 5 did not end in time: "waiting"`,
	}
	if out.Code != 137 || len(out.Verdict) != 2 || out.Verdict[0] != want[0] || out.Verdict[1] != want[1] {
		t.Errorf("got %d %q, want 137 %q", out.Code, out.Verdict, want)
	}
}

// A rank that exits with 0 has not failed, but its end may be the reason why another rank has
// failed.
func TestVerdictNamesARankThatLeftEarly(t *testing.T) {
	out := verdictOf(at(2*time.Second, endedRank(exitWith(1), lostTo2)), at(3*time.Second, endedRank(0, "")), at(1*time.Second, endedRank(0, "")))
	if want := "rank 2 had exited with code 0 before"; out.Code != 1 || len(out.Verdict) != 2 || out.Verdict[1] != want {
		t.Errorf("got %d %q, want 1 and %q", out.Code, out.Verdict, want)
	}
	out = verdictOf(at(2*time.Second, endedRank(exitWith(1), lostTo2)), at(3*time.Second, endedRank(0, "")), at(2*time.Second+noticeTime, endedRank(0, "")))
	if want := "rank 2 had exited with code 0 before"; out.Verdict[1] != want {
		t.Errorf("seen a little later: got %q, want %q", out.Verdict[1], want)
	}
	out = verdictOf(at(2*time.Second, endedRank(exitWith(1), lostTo2)), at(3*time.Second, endedRank(0, "")), at(4*time.Second, endedRank(0, "")))
	if want := "rank 2 had exited with code 0 before"; out.Verdict[1] != want {
		t.Errorf("seen much later, but lost: got %q, want %q", out.Verdict[1], want)
	}
	out = verdictOf(at(2*time.Second, endedRank(exitWith(1), "bad input")), at(1*time.Second, endedRank(0, "")))
	if want := "no other rank reported an error"; out.Verdict[1] != want {
		t.Errorf("got %q, want %q", out.Verdict[1], want)
	}
}

// A job that ended because too few ranks were left has failed, even if all remaining ranks exited
// with 0.
func TestAJobWithTooFewRanksFails(t *testing.T) {
	const failed = "ranks left: got 1, want at least 2"
	for name, c := range map[string]struct {
		ranks []*rank
		code  int
		first string
	}{
		"one was killed": {[]*rank{at(time.Second, endedRank(diedOf(9), "")), at(2*time.Second, endedRank(0, ""))}, 137, failed + ": rank 0 (prog, process 100) was killed by signal 9 (SIGKILL) after 1s"},
		"all left":       {[]*rank{at(time.Second, endedRank(0, "")), at(2*time.Second, endedRank(0, ""))}, 1, failed},
		"one stayed":     {[]*rank{at(time.Second, endedRank(0, "")), at(2*time.Second, killedRank(diedOf(15), ""))}, 1, failed},
	} {
		for i, k := range c.ranks {
			k.id, k.program = i, "/bin/prog"
		}
		r := &run{job: &Job{Recovery: true}, ranks: c.ranks, policy: newPolicy(2, 0, 0), failed: failed, pmi: pmi.NewServer("", nil, nil)}
		if out := r.outcome(); out.Code != c.code || len(out.Verdict) != 2 || out.Verdict[0] != c.first {
			t.Errorf("%s: got %d %q, want %d and %q", name, out.Code, out.Verdict, c.code, c.first)
		}
	}
}

func TestVerdictIsBoundedAndPrintable(t *testing.T) {
	ranks := []*rank{at(0, endedRank(exitWith(1), "\x1b[31m"+strings.Repeat("ü", 4000)))}
	for range 500 {
		ranks = append(ranks, at(time.Second, endedRank(exitWith(1), strings.Repeat("e", len(ranks)))))
	}
	for i := range 500 {
		ranks = append(ranks, at(time.Second, killedRank(diedOf(15), ""+strings.Repeat("f", i%3))))
	}
	out := verdictOf(ranks...)
	for _, line := range out.Verdict {
		if len(line) > 4<<10 || strings.ContainsAny(line, "\x1b\n") {
			t.Errorf("got a line of %d bytes: %.200q", len(line), line)
		}
	}
}

func TestVerdictOfAJobThatEndedWellIsNone(t *testing.T) {
	if out := verdictOf(at(0, endedRank(0, "noise")), at(0, endedRank(0, ""))); out.Code != 0 || len(out.Verdict) != 0 {
		t.Errorf("got %+v", out)
	}
}

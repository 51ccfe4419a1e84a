//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
)

// pmi is a shell function that sends a request to the process manager, and prints the answer.
const pmi = `pmi() { echo "cmd=$*" >&$PMI_FD; read answer <&$PMI_FD && echo "$answer"; }; `

// maxes is the answer to get_maxes.
const maxes = "cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=768"

// untilTrapped runs until a trap ends the shell. Unlike read, sleep returns if the signal arrives
// just before it.
const untilTrapped = `while :; do sleep 0.1; done`

// Programs of MPICH speak PMI to their launcher by an inherited socket.
func TestRanksMeetByPMI(t *testing.T) {
	t.Parallel()
	const rank = pmi + `
		pmi init pmi_version=1 pmi_subversion=1 >/dev/null
		kvs=$(pmi get_my_kvsname); kvs=${kvs#*kvsname=}
		pmi put kvsname=$kvs key=rank-$PMI_RANK value=$1$PMI_RANK >/dev/null
		pmi barrier_in >/dev/null
		for i in 0 1 2; do all="$all $(pmi get kvsname=$kvs key=rank-$i)"; done
		echo "$PMI_RANK/$PMI_SIZE $(pmi get_appnum) $all" | sed 's/cmd=[a-z_]* //g; s/rc=0 msg=success //g'
		pmi finalize >/dev/null`
	j := start(t, "-np", "2", "sh", "-c", rank, "sh", "a", ":", "-np", "1", "sh", "-c", rank, "sh", "b")
	const all = "  value=a0 value=a1 value=b2"
	j.expect("0/3 appnum=0"+all, "1/3 appnum=0"+all, "2/3 appnum=1"+all)
	j.ends(0)
}

// A rank can keep the others from going on by PMI. tuttirun must end the job then, and name that
// rank. The other ranks here would wait for ever.
func TestARankEndsTheJobByPMI(t *testing.T) {
	t.Parallel()
	const wait = `pmi barrier_in; exec sleep 1000`
	for name, c := range map[string]struct {
		culprit string // what rank 1 does
		grace   string // for a rank that aborts, longer than this test waits
		code    int
		want    string
	}{
		"abort":                 {`pmi abort exitcode=7; exec sleep 1000`, "600", 7, "aborted the job by PMI with exit code 7"},
		"abort, and an error":   {`echo "main.go:7: out of luck" >&2; pmi abort exitcode=7; exec sleep 1000`, "600", 7, `aborted the job by PMI with exit code 7: "main.go:7: out of luck"`},
		"no request":            {`pmi ""; exec sleep 1000`, "0", 1, `sent an invalid PMI request: got "cmd=", want cmd=NAME`},
		"ends before a barrier": {`exit 0`, "0", 1, "did not enter the PMI barrier in which other ranks waited"},
		"does not finalize":     {`pmi get_maxes; exit 0`, "0", 1, "ended its PMI connection without cmd=finalize"},
		"closes its end":        {`pmi get_maxes; exec 6>&- sleep 1000`, "0", 1, "ended its PMI connection without cmd=finalize"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := start(t, "-np", "3", "--grace", c.grace, "sh", "-c", pmi+`if [ $PMI_RANK = 1 ]; then `+c.culprit+`; else `+wait+`; fi`)
			stderr := j.ends(c.code, "tuttirun: rank 1 (sh, process ", c.want)
			if n := strings.Count(stderr, "tuttirun: "); n != 2 {
				t.Errorf("the verdict has %d lines, want 2:\n%s", n, stderr)
			}
		})
	}
}

// A connection ends before its process does. The error must name the exit status of the process,
// which is the cause.
func TestAnExitStatusPrecedesTheEndOfPMI(t *testing.T) {
	t.Parallel()
	for culprit, code := range map[string]int{`exit 5`: 5, `kill -9 $$`: 137} {
		j := start(t, "-np", "2", "--grace", "60", "sh", "-c", pmi+`[ $PMI_RANK = 1 ] || exec cat; pmi get_maxes; `+culprit)
		j.expect(maxes)
		j.stdin.Close() // rank 0 ends within the grace period
		j.ends(code, "tuttirun: rank 1 (sh, process ")
	}
}

// The launcher ends the other ranks after a failure. What the other ranks do then is not the cause.
func TestAnExitStatusPrecedesAnAbortThatFollowsIt(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "--grace", "0", "sh", "-c", pmi+`[ $PMI_RANK = 1 ] || { cat; exit 5; }
		trap 'pmi abort exitcode=7' TERM; pmi get_maxes; `+untilTrapped)
	j.expect(maxes)
	j.stdin.Close()
	j.ends(5, "tuttirun: rank 0 (sh, process ")
}

// The user's signal ends the ranks, and so their connections.
func TestASignalIsNoFailureOfPMI(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "1", "sh", "-c", pmi+`trap 'exit 0' INT; pmi get_maxes; `+untilTrapped)
	j.expect(maxes)
	j.signal(syscall.SIGINT)
	if stderr := j.ends(0); stderr != "" {
		t.Errorf("got %q on standard error", stderr)
	}
}

// The first signal is forwarded, and sets no deadline. PMI must still end a job that cannot go on.
// Rank 0 does not end by the signal.
func TestARankEndsTheJobByPMIAfterASignal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trap  string // what rank 1 does when it gets the signal
		grace string // for a rank that aborts, longer than this test waits
		code  int
		want  string
	}{
		"abort":                 {`pmi abort exitcode=7`, "600", 7, "aborted the job by PMI with exit code 7"},
		"ends before a barrier": {`exit 0`, "0", 130, "tuttirun: the job was asked to end (SIGINT), and was ended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := start(t, "-np", "2", "--grace", c.grace, "sh", "-c", pmi+
				`if [ $PMI_RANK = 1 ]; then trap '`+c.trap+`' INT; else trap '' INT; fi; pmi get_maxes; `+
				`[ $PMI_RANK = 1 ] || pmi barrier_in; `+untilTrapped)
			j.expect(maxes, maxes)
			j.signal(syscall.SIGINT)
			j.ends(c.code, c.want)
		})
	}
}

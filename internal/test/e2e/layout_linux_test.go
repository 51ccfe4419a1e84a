package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// startRoundRobin assigns ranks to the given number of hosts in turn. The job's root is on n0. The
// function env returns additional variables for the ranks of a host.
func (l *hostNetwork) startRoundRobin(ranks, hosts int, wire, root string, o instruction, env func(host int) string) *job {
	l.t.Helper()
	j := newJob(l.t)
	j.root = root
	j.commandPrefix = func(rank int) []string { return []string{l.tool, "in", fmt.Sprintf("n%d", rank%hosts)} }
	for r := range ranks {
		j.rank(r, ranks, wire, o, "HOSTS_LAB="+l.dir, env(r%hosts))
	}
	return j
}

// The test uses several pseudo-hosts, which differ by host name. The ranks of one host must be
// connected by shm, and every rank must see the same hosts and racks. The racks come from each
// rank's variable, or from rank 0's file.
func TestRanksOfSeveralHostsUseTheMemoryOfEach(t *testing.T) {
	t.Parallel()
	const ranks, count = 6, 2
	l := newHostNetwork(t, count)
	file := filepath.Join(t.TempDir(), "racks")
	if err := os.WriteFile(file, []byte("n0 left\nn1 right\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		port int
		env  func(host int) string
		want string
	}{
		{7200, func(host int) string { return fmt.Sprintf("TUTTI_RACK=r%d", host) }, "r0/n0[0 2 4] r1/n1[1 3 5]"},
		{7201, func(int) string { return "TUTTI_TOPOLOGY=" + file }, "left/n0[0 2 4] right/n1[1 3 5]"},
	} {
		j := l.startRoundRobin(ranks, count, "auto", fmt.Sprintf("10.77.0.10:%d", c.port), instruction{Program: "places"}, c.env)
		for _, e := range j.events("place", ranks) {
			host := e.Rank % count
			want := fmt.Sprintf("n%d, host %d, local %d of 3, with [%d %d %d]", host, host, e.Rank/count, host, host+2, host+4)
			if e.Text != want {
				t.Errorf("rank %d is at %q, want %q", e.Rank, e.Text, want)
			}
		}
		for _, e := range j.events("placed", ranks) {
			if want := c.want + " hierarchical hierarchical_split shm"; e.Text != want {
				t.Errorf("rank %d sees %q, want %q", e.Rank, e.Text, want)
			}
		}
		for _, p := range j.ranks {
			p.wantExit(j, 0)
		}
	}
}

// A rank dies during an operation on two levels. The ranks of its host, which wait in shared
// memory, and the ranks of the other host must all name the dead rank.
func TestARankKilledOnOneOfSeveralHostsIsNamedByAll(t *testing.T) {
	t.Parallel()
	const ranks, count = 4, 2
	l := newHostNetwork(t, count)
	for i, c := range []struct{ bytes, victim int }{{4, 2}, {4, 1}, {8 << 20, 0}, {8 << 20, 3}} {
		j := l.startRoundRobin(ranks, count, "auto", fmt.Sprintf("10.77.0.10:%d", 7300+i), instruction{Program: "sum", Bytes: c.bytes},
			func(int) string { return "TUTTI_RACK=r" })
		pids := j.pids(ranks)
		j.events("summing", ranks)
		killed := j.signal(pids[c.victim], syscall.SIGKILL)
		j.wantLost(ranks-1, c.victim, "allreduce #", killed)
	}
}

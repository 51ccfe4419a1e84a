package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// A hostNetwork is a set of pseudo-hosts in network namespaces, n0 and up; see tools/hosts.
type hostNetwork struct {
	t    *testing.T
	tool string
	dir  string
}

// newHostNetwork sets up n hosts. If that is impossible, it skips the test and gives the reason.
func newHostNetwork(t *testing.T, n int) *hostNetwork {
	t.Helper()
	if os.Geteuid() != 0 {
		// Reason: only root may create network namespaces.
		t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"bash", "ip", "unshare", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			// Reason: the script that sets up the hosts calls these programs.
			t.Skipf("network namespaces need %s: %v", tool, err)
		}
	}
	if out, err := exec.Command("unshare", "-n", "-u", "-m", "ip", "link", "add", "br0", "type", "bridge").CombinedOutput(); err != nil {
		// Reason: some containers forbid network namespaces.
		t.Skipf("no network namespaces or bridges here: %v: %s", err, out)
	}
	tool, err := filepath.Abs("../../../tools/hosts")
	if err != nil {
		t.Fatal(err)
	}
	l := &hostNetwork{t: t, tool: tool, dir: filepath.Join(t.TempDir(), "lab")}
	t.Cleanup(func() { l.run("down") })
	l.run("up", fmt.Sprint(n))
	return l
}

// run runs the tool that makes and changes the hosts.
func (l *hostNetwork) run(args ...string) {
	l.t.Helper()
	cmd := exec.Command(l.tool, args...)
	cmd.Env = append(os.Environ(), "HOSTS_LAB="+l.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("hosts %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// startJob starts one rank on each host; the job's root is on n0.
func (l *hostNetwork) startJob(ranks int, wire, root string, o instruction, env ...string) *job {
	l.t.Helper()
	j := newJob(l.t)
	j.root = root
	j.commandPrefix = func(rank int) []string { return []string{l.tool, "in", fmt.Sprintf("n%d", rank)} }
	for r := range ranks {
		j.rank(r, ranks, wire, o, append([]string{"HOSTS_LAB=" + l.dir}, env...)...)
	}
	return j
}

func TestAHostWhoseLinkIsCutIsNamedWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	const ranks, victim, within = 3, 2, 5 * time.Second
	l := newHostNetwork(t, ranks)
	jobs := make(map[string]*job)
	for i, wire := range streams() {
		jobs[wire] = l.startJob(ranks, wire, fmt.Sprintf("10.77.0.10:%d", 7000+i), instruction{Program: "sum", Bytes: 100_000})
	}
	for _, j := range jobs {
		j.events("summing", ranks)
	}
	l.run("cut", fmt.Sprintf("n%d", victim))
	// The clock starts only now, because cutting runs some programs, and the silence is longer than
	// they take.
	cut := make(map[string]moment)
	for wire, j := range jobs {
		cut[wire] = j.now()
	}
	for wire, j := range jobs {
		for _, e := range j.events("ended", ranks) {
			j.wantWithin(e, cut[wire], within)
			if e.Kind != fault.PeerLost.Error() {
				t.Errorf("%s: rank %d got %q, want a %q", wire, e.Rank, e.Text, fault.PeerLost)
			}
			// The victim cannot know that it is cut off, but it can report that no rank answers.
			if e.Rank == victim {
				if !strings.Contains(e.Text, "this rank may be the one that is cut off") {
					t.Errorf("%s: the rank that was cut off got %q", wire, e.Text)
				}
				continue
			}
			j.wantBlamed(e, victim, "allreduce #")
			if len(e.Peers) == 1 && e.Peers[0].Host != fmt.Sprintf("n%d", victim) {
				t.Errorf("%s: rank %d says that rank %d is on %q", wire, e.Rank, victim, e.Peers[0].Host)
			}
		}
		for _, p := range j.ranks {
			p.wantExit(j, 1)
		}
	}
}

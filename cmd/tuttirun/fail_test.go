//go:build unix

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/internal/version"
)

func TestExitCodeIsZeroWhenAllRanksEndWell(t *testing.T) {
	t.Parallel()
	if stderr := start(t, "-np", "64", "true").ends(0); stderr != "" {
		t.Errorf("got %q on standard error", stderr)
	}
}

// A rank may end long before the others, and must not end them.
func TestRankThatExitsZeroEndsNobodyElse(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "--grace", "0", "sh", "-c", `[ $TUTTI_RANK = 1 ] && { echo bye; exit 0; }; read line; echo "still here, $line"`)
	j.expect("bye")
	io.WriteString(j.stdin, "friend\n")
	j.expect("still here, friend")
	j.ends(0)
}

func TestFirstFailingRankDecidesAndTheOthersReport(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "3", "--grace", "60", "sh", "-c", `
		case $TUTTI_RANK in
		0) read line; echo "2026/01/02 03:04:05 allreduce: rank 0: peer lost [rank 1 on here]" >&2; exit 1;;
		1) echo "main.go:7: out of luck" >&2; echo failing; exit 3;;
		esac`)
	j.expect("failing")
	io.WriteString(j.stdin, "now\n") // within the grace period rank 0 reports by itself
	j.ends(3, "tuttirun: rank 1 (sh, process ", `exited with code 3 after `, `: "main.go:7: out of luck"`,
		`tuttirun: rank 0: "allreduce: peer lost [rank 1 on here]"`)
}

func TestKilledRankIsNamedWithItsSignal(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "--grace", "60", "sh", "-c", `
		[ $TUTTI_RANK = 1 ] && { echo $$; exec sleep 1000; }
		read line; echo "allreduce: rank 0: peer lost [rank 1]" >&2; exit 1`)
	var pid int
	if _, err := fmt.Sscan(j.line(), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	io.WriteString(j.stdin, "now\n")
	stderr := j.ends(137, fmt.Sprintf("rank 1 (sh, process %d) was killed by signal 9 (SIGKILL)", pid), `rank 0: "allreduce: peer lost [rank 1]"`)
	if n := strings.Count(stderr, "tuttirun: "); n != 2 {
		t.Errorf("the verdict has %d lines", n)
	}
}

func TestRanksThatDoNotEndByThemselvesGetTermThenKill(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "3", "--grace", "0", "sh", "-c", `
		case $TUTTI_RANK in
		0) read line; kill -ABRT $$;;
		1) trap 'echo got TERM; exit 0' TERM; echo ready; while :; do sleep 1000 & wait $!; done;;
		2) trap '' TERM; echo ready; exec sleep 1000;;
		esac`)
	j.expect("ready", "ready")
	io.WriteString(j.stdin, "now\n")
	j.expect("got TERM")
	j.ends(134, "rank 0 (sh, process ", "was killed by signal 6 (SIGABRT)", "rank 2 did not end in time")
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "--timeout", "0.3", "sh", "-c", `[ $TUTTI_RANK = 0 ] && trap '' TERM; exec sleep 1000`)
	j.ends(124, "has not ended within 300ms (--timeout)", "ranks 0, 1 did not end in time")
}

func TestQuietPrintsNothing(t *testing.T) {
	t.Parallel()
	start(t, "-q", "-np", "1", "/nonexistent/program").ends(127, "tuttirun: cannot start ", "/nonexistent/program")
	if stderr := start(t, "-q", "--mca", "a", "b", "-np", "1", "false").ends(1); stderr != "" {
		t.Errorf("got %q", stderr)
	}
}

func TestProgramsThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"missing":                {[]string{"-np", "2", "no-such-program"}, 127, "no-such-program: no such program in PATH"},
		"missing path":           {[]string{"-np", "2", "./no/such"}, 127, "./no/such: no such file"},
		"not executable":         {[]string{"-np", "2", plain}, 126, "not executable"},
		"directory":              {[]string{"-np", "2", "/"}, 126, "is a directory"},
		"missing working dir":    {[]string{"-np", "2", "-wdir", "/no/such", "true"}, 126, "/no/such does not exist"},
		"missing, half-way":      {[]string{"-np", "4", "sleep", "1000", ":", "-np", "1", "no-such-program"}, 127, "no-such-program"},
		"no interpreter":         {[]string{"-np", "4", "sleep", "1000", ":", "-np", "2", script(t, "#!/no/such/shell\n")}, 127, "interpreter is missing"},
		"no format, not a shell": {[]string{"-np", "4", "sleep", "1000", ":", "-np", "2", script(t, "echo x\n")}, 126, "#!"},
		"bad option":             {[]string{"--npp", "4", "true"}, 2, "did you mean -np?"},
	} {
		t.Run(name, func(t *testing.T) { start(t, c.args...).ends(c.code, c.want) })
	}
}

// tuttirun must end a child that a rank leaves running. It must let a child finish that ends soon
// by itself.
func TestChildrenLeftBehindAreEnded(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "--grace", "0.1", "sh", "-c", `sleep 1000 & exit 0`)
	j.ends(0, "ended sleep (")
	j = start(t, "-np", "1", "sh", "-c", `exec 5<&0; { read line <&5; echo "logged $line"; } & exit 0`)
	io.WriteString(j.stdin, "it\n")
	j.expect("logged it")
	j.ends(0)
}

// The children of a rank that has failed must not go on beside the process that takes its place.
func TestChildrenOfARankThatIsStartedAgainAreKilled(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "1", "--restart-ranks", "1", "--grace", "5", "sh", "-c",
		`mkdir "$0" || exit 0; sleep 1000 & kill -KILL $$`, filepath.Join(t.TempDir(), "started"))
	if stderr := j.ends(0, "started again"); strings.Contains(stderr, "ended sleep (") {
		t.Errorf("the first process's child was left until the end:\n%s", stderr)
	}
}

// If the reader closes its end, the ranks must end by SIGPIPE, as in a pipeline.
func TestClosedReaderEndsTheJob(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"-np=2", "-l"} {
		j := start(t, tag, "-np", "2", "yes")
		j.line()
		j.stdout.Close()
		j.ends(141, "SIGPIPE")
	}
}

func TestHelpAndVersionExitZero(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--help": "usage: tuttirun ", "-h": "usage: tuttirun ", "-V": version.Line("tuttirun"), "--version": version.Line("tuttirun"),
	} {
		j := start(t, flag)
		if line := j.line(); !strings.HasPrefix(line, want) {
			t.Errorf("%s: got %q, want %q", flag, line, want)
		}
		if _, err := io.Copy(io.Discard, j.lines); err != nil {
			t.Error(err)
		}
		j.ends(0)
	}
}

// The tests of this package need these programs. They do not need ps.
func TestNeededProgramsAreThere(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"sh", "sleep", "true", "false", "yes", "echo", "cat"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Error(err)
		}
	}
}

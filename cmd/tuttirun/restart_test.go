//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The ranks of each start have credentials that are valid for each other, in that incarnation.
func TestAFailedJobIsStartedAgainAsANewIncarnation(t *testing.T) {
	t.Parallel()
	meet := role(t, "meet")
	args := []string{"-np", "2", "--restart", "3"}
	args = append(args, meet[:2]...)
	args = append(args, "sh", "-c", `echo "job $TUTTI_JOB"; [ $TUTTI_INCARNATION = 2 ] || { echo no $TUTTI_INCARNATION >&2; exit 7; }; exec "$0"`, meet[2])
	j := start(t, args...)
	jobs := make(map[string]bool)
	for range 6 {
		line := j.line()
		if !strings.HasPrefix(line, "job job-") {
			t.Errorf("got %q, want a job", line)
		}
		jobs[line] = true
	}
	if len(jobs) != 3 {
		t.Errorf("got the jobs %v, want three names", jobs)
	}
	j.expect("0 of 2 met, secret of 16", "1 of 2 met, secret of 16")
	stderr := j.ends(0, "exited with code 7 after", `"no 0"`, `"no 1"`,
		"the job is started again (restart 1 of 3)", "the job is started again (restart 2 of 3)")
	if strings.Contains(stderr, "restart 3") {
		t.Errorf("got a third restart:\n%s", stderr)
	}
}

func TestAJobIsStartedAgainOnlyIfThatMayHelp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args           []string
		code, restarts int
	}{
		"as often as allowed":     {[]string{"--max-restarts", "2", "sh", "-c", "exit 7"}, 7, 2},
		"after a signal":          {[]string{"--restart", "1", "sh", "-c", "kill -9 $$"}, 137, 1},
		"after a panic":           {[]string{"--restart", "1", "sh", "-c", "echo panic: oh >&2; exit 2"}, 2, 1},
		"after success":           {[]string{"--restart", "1", "sh", "-c", "exit 0"}, 0, 0},
		"after a usage error":     {[]string{"--restart", "1", "sh", "-c", "exit 2"}, 2, 0},
		"no program to execute":   {[]string{"--restart", "1", "sh", "-c", "exit 126"}, 126, 0},
		"no program":              {[]string{"--restart", "1", "sh", "-c", "exit 127"}, 127, 0},
		"the time is over":        {[]string{"--restart", "1", "--timeout", "1ms", "sleep", "1000"}, 124, 0},
		"no restarts by default":  {[]string{"sh", "-c", "exit 7"}, 7, 0},
		"a job that cannot start": {[]string{"--restart", "1", "./no-such-program"}, 127, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := start(t, append([]string{"-np", "1"}, c.args...)...)
			if got := strings.Count(j.ends(c.code), "the job is started again"); got != c.restarts {
				t.Errorf("got %d restarts, want %d", got, c.restarts)
			}
		})
	}
}

// A job that a signal to the launcher ends is not started again, even if a rank handles the signal
// by exiting with a failure.
func TestASignalToTheLauncherEndsAJobThatMayBeRestarted(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "1", "--restart", "9", "sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done")
	j.expect("up")
	j.signal(syscall.SIGTERM)
	if stderr := j.ends(7); strings.Contains(stderr, "started again") {
		t.Errorf("got:\n%s", stderr)
	}
	if line := j.line(); line != "" {
		t.Errorf("got %q after the signal", line)
	}
}

// No start overwrites the output of another start, and only the first start has the input.
func TestEachStartHasItsOwnOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := start(t, "-np", "1", "--restart", "1", "--output-filename", dir, "-errfile-pattern", filepath.Join(dir, "errors"),
		"sh", "-c", `[ $TUTTI_INCARNATION = 0 ] && read a || a=$(cat); echo "start $TUTTI_INCARNATION $a"; echo "error $TUTTI_INCARNATION" >&2; exit 7`)
	j.stdin.Write([]byte("input\n")) // the pipe stays open, so cat would not end
	j.ends(7)
	for path, want := range map[string]string{
		"1/rank.0/stdout": "start 0 input\n", "2/rank.0/stdout": "start 1 \n", "errors": "error 0\nerror 1\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
}

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
	const begin = "echo begin; "
	for name, c := range map[string]struct {
		args         []string
		code, starts int
	}{
		"as often as allowed":     {[]string{"--max-restarts", "2", "sh", "-c", begin + "exit 7"}, 7, 3},
		"after a signal":          {[]string{"--restart", "1", "sh", "-c", begin + "kill -9 $$"}, 137, 2},
		"after a panic":           {[]string{"--restart", "1", "sh", "-c", begin + "echo panic: oh >&2; exit 2"}, 2, 2},
		"after success":           {[]string{"--restart", "1", "sh", "-c", begin + "exit 0"}, 0, 1},
		"after a usage error":     {[]string{"--restart", "1", "sh", "-c", begin + "exit 2"}, 2, 1},
		"no program to execute":   {[]string{"--restart", "1", "sh", "-c", begin + "exit 126"}, 126, 1},
		"no program":              {[]string{"--restart", "1", "sh", "-c", begin + "exit 127"}, 127, 1},
		"the time is over":        {[]string{"--restart", "1", "--timeout", "1s", "sh", "-c", begin + "exec sleep 1000"}, 124, 1},
		"no restarts by default":  {[]string{"sh", "-c", begin + "exit 7"}, 7, 1},
		"a job that cannot start": {[]string{"--restart", "1", "./no-such-program"}, 127, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := start(t, append([]string{"-np", "1"}, c.args...)...)
			starts := 0
			for j.line() == "begin" {
				starts++
			}
			j.ends(c.code)
			if starts != c.starts {
				t.Errorf("got %d starts, want %d", starts, c.starts)
			}
		})
	}
}

// A rank that handles the signal by exiting with a failure has not failed.
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

// No start overwrites the output of another, and only the first has the input.
func TestEachStartHasItsOwnOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := start(t, "-np", "1", "--restart", "1", "--output-filename", dir, "-errfile-pattern", filepath.Join(dir, "errors"),
		"sh", "-c", `echo "start $TUTTI_INCARNATION $(cat)"; echo "error $TUTTI_INCARNATION" >&2; exit 7`)
	j.stdin.Write([]byte("input"))
	j.stdin.Close()
	j.ends(7)
	for path, want := range map[string]string{
		"1/rank.0/stdout": "start 0 input\n", "2/rank.0/stdout": "start 1 \n", "errors": "error 0\nerror 1\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
}

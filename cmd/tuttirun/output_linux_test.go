package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// contents checks the contents of a file.
func contents(t *testing.T, want string, path ...string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(path...))
	if err != nil || string(got) != want {
		t.Errorf("%s: got %q, %v, want %q", filepath.Join(path...), got, err, want)
	}
}

// printBoth is a program that prints a line to each of its streams.
const printBoth = `echo "out $TUTTI_RANK"; echo "err $TUTTI_RANK" >&2`

func TestOutputFilesHaveTheLayoutOfMpirun(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "o%f")
	j := start(t, "-np", "2", "--output-filename", dir, "sh", "-c", printBoth)
	j.expect("out 0", "out 1")
	j.ends(0, "err 0\n", "err 1\n")
	contents(t, "out 0\n", dir, "1", "rank.0", "stdout")
	contents(t, "err 1\n", dir, "1", "rank.1", "stderr")
	// A second job replaces the files. The lines in them have their prefix.
	j = start(t, "-np", "2", "-tag-output", "--output-filename", dir+":nocopy", "sh", "-c", printBoth)
	if got := j.ends(0); got != "" {
		t.Errorf("with nocopy standard error is %q", got)
	}
	if got := j.line(); got != "" {
		t.Errorf("with nocopy the job prints %q", got)
	}
	contents(t, "[1,1]<stdout>:out 1\n", dir, "1", "rank.1", "stdout")
	contents(t, "[1,0]<stderr>:err 0\n", dir, "1", "rank.0", "stderr")
}

func TestOutputPatternsOfMpiexec(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	host, _ := os.Hostname()
	j := start(t, "-np", "2", "-outfile-pattern", dir+"/%h.out", "-prepend-pattern", "%r: ", "sh", "-c", printBoth)
	j.ends(0, "0: err 0\n", "1: err 1\n")
	text, err := os.ReadFile(filepath.Join(dir, host+".out"))
	if got := string(text); err != nil || got != "0: out 0\n1: out 1\n" && got != "1: out 1\n0: out 0\n" {
		t.Errorf("the file of both ranks: got %q, %v", got, err)
	}
}

// In one pipe the order of the lines is that in which the rank has written them. The verdict still
// quotes the last error.
func TestMergedStreamsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "1", "--merge-stderr-to-stdout", "--output", "rank", "sh", "-c", "for i in 1 2 3; do echo o$i; echo e$i >&2; done; exit 3")
	for _, want := range []string{"o1", "e1", "o2", "e2", "o3", "e3"} {
		if got := j.line(); got != "[0]<stdout>: "+want {
			t.Errorf("got %q, want %q", got, "[0]<stdout>: "+want)
		}
	}
	j.ends(3, `exited with code 3 after`, `: "e3"`)
}

// On a full disk the job goes on, nothing that a rank prints is lost, and the exit code says that the
// file is not complete.
func TestAFullDiskDoesNotLoseOutput(t *testing.T) {
	t.Parallel()
	const full = "write /dev/full: no space left on device"
	j := start(t, "-np", "2", "-outfile-pattern", "/dev/full", "sh", "-c", printBoth)
	j.expect("out 0", "out 1")
	stderr := j.ends(1, "tuttirun: "+full+": from here on the file lacks", "tuttirun: a file of the ranks' output lacks lines: "+full)
	if n := strings.Count(stderr, full); n != 2 {
		t.Errorf("got %d lines about the full disk, want 2:\n%s", n, stderr)
	}
	start(t, "-np", "2", "-errfile-pattern", "/dev/full", "sh", "-c", printBoth+"; exit 7").ends(7, "err 0\n", "err 1\n", full)
}

func TestFilesThatCannotBeMadeEndTheJobBeforeItBegins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, link, file, fifo := dir+"/target", dir+"/link", dir+"/file", dir+"/fifo"
	for _, f := range []string{target, file} {
		if err := os.WriteFile(f, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{
		link:        "got the symbolic link " + link + ", want a file",
		file + "/x": "not a directory",
		fifo:        "no such device or address", // nobody reads it
	} {
		start(t, "-np", "2", "-outfile-pattern", pattern, "echo").ends(126, "cannot start echo: the file for its output: ", want, "0 of 2 ranks had started")
	}
	contents(t, "precious", target)
}

// On a terminal prefixes have colours, unless the user wants none.
func TestPrefixesHaveColoursOnATerminal(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"NO_COLOR=":  "\x1b[36m[0] \x1b[0mhello\r\n",
		"NO_COLOR=1": "[0] hello\r\n",
		"TERM=dumb":  "[0] hello\r\n",
	} {
		user, process := terminal(t)
		cmd := exec.Command(role(t, "")[2], "-l", "-np", "1", "echo", "hello")
		cmd.Env = append(os.Environ(), testLauncher+"=1", "TERM=xterm", "NO_COLOR=", env)
		cmd.Stdout = process
		if err := cmd.Run(); err != nil {
			t.Error(err)
		}
		buf := make([]byte, 100)
		n, err := user.Read(buf)
		if got := string(buf[:n]); got != want {
			t.Errorf("%s: got %q, %v, want %q", env, got, err, want)
		}
		process.Close()
	}
}

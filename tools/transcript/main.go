// Command transcript runs the commands in the transcripts of a folder's programs, and fails if a
// command prints something else. Every folder with a main package must have a transcript.txt, which
// looks like a terminal:
//
//	# A comment.
//	$ bin/tuttirun -np 2 bin/hello
//	hello from rank 0 of 2
//	hello from rank 1 of 2 in ...
//	...
//
// A line that begins with "$ " is a command, which runs without a shell in the current directory.
// The lines below it are its standard output. Ranks print concurrently, so the lines may come in
// any order. Each of them must appear, and no others. "..." stands for any text within a line and,
// alone on a line, for any number of other lines. The command must exit with 0.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	limit := flag.Duration("timeout", 2*time.Minute, "how long one command may take")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := checkAll(ctx, flag.Arg(0), *limit); err != nil {
		fmt.Fprintln(os.Stderr, "transcript:", err)
		os.Exit(1)
	}
}

// checkAll checks the transcript of every program directly below root. It continues after a
// failure, so that one run shows all failures.
func checkAll(ctx context.Context, root string, limit time.Duration) error {
	dirs, err := programs(root)
	if err != nil {
		return err
	}
	if len(dirs) == 0 {
		return fmt.Errorf("no program in %q", root)
	}
	var failures []error
	for _, dir := range dirs {
		if err := check(ctx, filepath.Join(dir, "transcript.txt"), limit); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// programs returns the folders directly below root that have a main package.
func programs(root string) ([]string, error) {
	mains, err := filepath.Glob(filepath.Join(root, "*", "*.go"))
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, file := range mains {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		dir := filepath.Dir(file)
		last := len(dirs) > 0 && dirs[len(dirs)-1] == dir
		if !last && bytes.Contains(text, []byte("\npackage main\n")) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// check runs the commands of the transcript in file.
func check(ctx context.Context, file string, limit time.Duration) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	cases, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, s := range cases {
		begin := time.Now()
		output, err := runCommand(ctx, s.line, limit)
		if err == nil {
			err = s.compare(output)
		}
		if err != nil {
			return fmt.Errorf("%s: $ %s: %w\nit printed:\n%s", file, s.line, err, output)
		}
		fmt.Printf("ok  %s  (%.1fs)\n", s.line, time.Since(begin).Seconds())
	}
	return nil
}

// runCommand runs one command and returns its standard output. Standard error is passed on.
func runCommand(ctx context.Context, command string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	words := strings.Fields(command)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stderr = os.Stderr
	// A launcher that is interrupted ends its ranks. A launcher that is killed could not.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	output, err := cmd.Output()
	if ctx.Err() != nil {
		err = fmt.Errorf("not finished after %v: %w", limit, err)
	}
	return string(output), err
}

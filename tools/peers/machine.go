package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// machine describes the machine of the results: processor, cores, kernel.
func machine() string {
	return fmt.Sprintf("%s, %d cores, %s, %s/%s", processor(), runtime.NumCPU(), kernel(), runtime.GOOS, runtime.GOARCH)
}

// processor returns the processor's model name from Linux.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown kernel"
	}
	return "kernel " + strings.TrimSpace(string(text))
}

// commit returns the commit of the worktree in dir. A + after the commit means that there are
// uncommitted changes. Changes in the folder of the results do not count, because each recording
// changes these files.
func commit(ctx context.Context, dir, results string) string {
	git := func(args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
	}
	head, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	status := []string{"status", "--porcelain", "--untracked-files=no", "--", ":/"}
	if results != "" {
		status = append(status, ":(exclude)"+results)
	}
	changed, err := git(status...)
	mark := ""
	if err != nil || len(bytes.TrimSpace(changed)) > 0 {
		mark = "+"
	}
	return strings.TrimSpace(string(head)) + mark
}

// versions returns the versions of the peers' Debian packages that are installed.
func versions(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Package} ${Version}, ",
		"openmpi-bin", "mpich", "libgloo-dev").Output() // missing packages go to standard error
	if text := strings.TrimSuffix(string(out), ", "); text != "" {
		return text
	}
	return "of unknown versions"
}

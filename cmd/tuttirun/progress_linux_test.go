package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The progress of the hosts' start must be erased before any other output, also if the start fails.
func TestProgressOfHostsIsErasedFromTheTerminal(t *testing.T) {
	t.Parallel()
	// The script takes the place of ssh, and runs the command on this machine.
	const here = "#!/bin/sh\n" + testLauncher + `=1 exec sh -c "$2"`
	for agent, want := range map[string]string{
		here:                  "err\r\nerr\r\n",
		"#!/bin/sh\nexit 255": "tuttirun: cannot start ",
	} {
		user, process := terminal(t)
		cmd := exec.Command(role(t, "")[2], "-H", "host-a,host-b", "--launcher-exec", script(t, agent), "sh", "-c", "echo err >&2")
		cmd.Env = append(os.Environ(), testLauncher+"=1", "TERM=xterm")
		cmd.Stderr = process
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		process.Close()
		stuck := time.AfterFunc(limit, func() { cmd.Process.Kill() })
		defer stuck.Stop()
		var screen strings.Builder
		for buf := make([]byte, 1000); ; {
			n, err := user.Read(buf)
			screen.Write(buf[:n])
			if err != nil { // no process has the terminal any more
				break
			}
		}
		cmd.Wait()
		const erase = "\r\x1b[K"
		shown, _, _ := strings.Cut(screen.String(), erase)
		if shown != "tuttirun: 0 of 2 hosts have started" {
			t.Errorf("got %q first", shown)
		}
		left := ""
		for line := range strings.SplitAfterSeq(screen.String(), "\n") {
			if i := strings.LastIndex(line, erase); i >= 0 {
				line = line[i+len(erase):]
			}
			left += line
		}
		if !strings.Contains(left, want) || strings.Contains(left, "have started") {
			t.Errorf("the terminal shows %q, want %q and no progress", left, want)
		}
	}
}

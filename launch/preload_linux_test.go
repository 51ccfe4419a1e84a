package launch

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/launch/internal/remote"
)

// script writes a program, and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// list returns the names in a directory.
func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// awaitEmpty waits until nothing is left in a directory. It polls the directory, because the
// guardian that removes the last entry is no child of this process.
func awaitEmpty(t *testing.T, dir string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_DELETE); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4<<10)
	for until := time.Now().Add(limit); len(list(t, dir)) > 0; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, time.Until(until).Milliseconds())))
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			t.Errorf("left in the directory after %v: %q", limit, list(t, dir))
			return
		}
		unix.Read(fd, buf)
	}
}

// where is a program that prints its rank and its own path. If the program is in the private
// directory, it also prints the mode and the content of that directory.
const where = `case $0 in *tutti-*) d=${0%/*/*}; more=" $(stat -c %a "$d") $(ls "$d")";; esac; echo "$TUTTI_RANK $0$more"`

// Each host gets the program once, although every rank has its own App, and a rank of this host runs
// the file itself.
func TestProgramsAreSentToOtherHosts(t *testing.T) {
	for _, by := range []string{"ssh", "agent"} {
		t.Run(by, func(t *testing.T) {
			dir, prog := t.TempDir(), script(t, where)
			j := hostsJob{Hosts: []string{"localhost", hostB, hostB, hostC}, Args: []string{prog}, Preload: true, TmpDir: dir}
			if by == "agent" {
				j.By = startAgent(t).by
			}
			l := launch(t, j)
			lines := l.sorted(4)
			if want := "0 " + prog; lines[0] != want {
				t.Errorf("got %q, want %q", lines[0], want)
			}
			var dirs []string
			for i, line := range lines[1:] {
				f := strings.Fields(line)
				if len(f) != 4 || f[2] != "700" || f[3] != "0" {
					t.Fatalf("got %q, want a path, the mode 700, and one entry in the private directory", line)
				}
				d, ok := strings.CutSuffix(f[1], "/0/prog")
				if !ok || filepath.Dir(d) != dir {
					t.Errorf("rank %d: got program %s, want it in %s", i+1, f[1], dir)
				}
				dirs = append(dirs, d)
			}
			if dirs[0] != dirs[1] || dirs[0] == dirs[2] {
				t.Errorf("got directories %q, want one for each host", dirs)
			}
			l.ends(0)
			awaitEmpty(t, dir)
		})
	}
}

// Two programs that have the same name and different contents are both sent.
func TestTwoProgramsOfOneNameAreSent(t *testing.T) {
	dir := t.TempDir()
	j := hostsJob{Hosts: []string{hostB, hostB}, Preload: true, TmpDir: dir}.job()
	j.Apps[0].Args = []string{script(t, "echo one")}
	j.Apps[1].Args = []string{script(t, "echo two")}
	var stdout strings.Builder
	j.Stdout = &stdout
	if out := Run(t.Context(), j); out.Code != 0 {
		t.Errorf("got %+v, want success", out)
	}
	lines := strings.Fields(stdout.String())
	if slices.Sort(lines); !slices.Equal(lines, []string{"one", "two"}) {
		t.Errorf("got %q, want a line of each program", lines)
	}
	awaitEmpty(t, dir)
}

// While ranks run, a process of the job is killed. The programs that the launcher has copied must
// be removed, whichever process it is.
func TestNoProgramIsLeftWhateverIsKilled(t *testing.T) {
	for _, by := range []string{"ssh", "agent"} {
		for _, victim := range []string{"launcher", "node", "parent of node", "rank"} {
			t.Run(by+", "+victim, func(t *testing.T) {
				dir := t.TempDir()
				j := hostsJob{Hosts: []string{hostB}, Args: []string{script(t, family)}, Preload: true, TmpDir: dir}
				if by == "agent" {
					j.By = startAgent(t).by
				}
				l := launch(t, j)
				var rank, node int
				fmt.Sscanf(l.line(), "0 ready %d %d", &rank, &node)
				if len(list(t, dir)) != 1 {
					t.Fatalf("got %q in the directory, want one entry", list(t, dir))
				}
				pid := map[string]int{"launcher": l.cmd.Process.Pid, "node": node, "parent of node": parent(t, node), "rank": rank}[victim]
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				awaitEmpty(t, dir)
				l.nothingLeft(limit)
			})
		}
	}
}

// If a transfer ends in the middle of a program, the part that the host has stored must be removed.
func TestNoProgramIsLeftAfterHalfATransfer(t *testing.T) {
	for _, end := range []string{"the node is killed", "the connection ends", "the launcher ends the job"} {
		t.Run(end, func(t *testing.T) {
			dir := t.TempDir()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self, "remote")
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
			cmd.Stderr = os.Stderr
			conn, theirs, err := socketPair("node")
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdin, cmd.Stdout = theirs, theirs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			l, err := remote.Connect(t.Context(), hostB, conn)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			const size = 64 << 20
			l.Send(&remote.Command{Prepare: &remote.Prepare{Job: "job-of-half.1", Size: 1, Programs: []remote.Preload{{Name: "half", Size: size, Sum: make([]byte, sha256.Size)}}}})
			// The connection buffers less than 8 MiB, so the node has stored a part when Write
			// returns.
			if _, err := l.Stream(0, remote.Programs).Write(make([]byte, 8<<20)); err != nil {
				t.Fatal(err)
			}
			stored, err := filepath.Glob(dir + "/tutti-*/0/half")
			if err != nil || len(stored) != 1 {
				t.Fatalf("got files %q, %v, want one", stored, err)
			}
			if info, err := os.Stat(stored[0]); err != nil || info.Size() == 0 || info.Size() >= size {
				t.Fatalf("got %v, %v, want a part of the program", info, err)
			}
			switch end {
			case "the node is killed":
				cmd.Process.Kill()
			case "the connection ends":
				conn.Close()
			case "the launcher ends the job":
				l.Close()
			}
			awaitEmpty(t, dir)
			cmd.Wait()
		})
	}
}

// A host that cannot store a program says why, and keeps nothing of it.
func TestANodeRefusesProgramsThatItCannotStore(t *testing.T) {
	text := []byte("#!/bin/sh\nexit 0\n")
	sum := sha256.Sum256(text)
	whole := remote.Preload{Name: "prog", Size: int64(len(text)), Sum: sum[:]}
	with := func(change func(*remote.Preload)) []remote.Preload {
		p := whole
		change(&p)
		return []remote.Preload{p}
	}
	for name, c := range map[string]struct {
		programs []remote.Preload
		dir      string // in the directory of the test
		sent     []byte
		want     string
	}{
		"stored":     {[]remote.Preload{whole}, "", text, ""},
		"changed":    {[]remote.Preload{whole}, "", []byte("#!/bin/sh\nexit 1\n"), "prog: got SHA-256 "},
		"short":      {[]remote.Preload{whole}, "", text[:8], "prog: got fewer than 17 bytes of it"},
		"large":      {with(func(p *remote.Preload) { p.Size = maxPreload + 1 }), "", nil, "prog: got more than 1024 MiB of programs"},
		"negative":   {with(func(p *remote.Preload) { p.Size = -1 }), "", nil, "prog: got more than 1024 MiB of programs"},
		"sum":        {[]remote.Preload{whole, {Name: "prog", Size: maxPreload - 16}}, "", text, "prog: got more than 1024 MiB of programs"},
		"elsewhere":  {with(func(p *remote.Preload) { p.Name = "../../prog" }), "", text, ""},
		"above":      {with(func(p *remote.Preload) { p.Name = ".." }), "", text, "choose another directory by --tmpdir"},
		"no such":    {[]remote.Preload{whole}, "/none", nil, "/none/tutti-"},
		"a new line": {[]remote.Preload{whole}, "\n", nil, `\n", want an absolute path`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, end := startNode(t, "")
			l.Send(&remote.Command{Prepare: &remote.Prepare{Job: "job-of-programs.1", Size: 1, Programs: c.programs, TmpDir: remote.Text(dir + c.dir)}})
			to := l.Stream(0, remote.Programs)
			go func() {
				to.Write(c.sent)
				to.Close()
			}()
			await(t, l, func(e *remote.Event) bool {
				if e.Prepared == nil {
					return false
				}
				if got := e.Prepared.Failed; (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
				return true
			})
			if c.want == "" {
				l.Send(&remote.Command{Start: &remote.Start{Program: 1, Args: []string{"another name"}, Dir: "/"}})
				await(t, l, func(e *remote.Event) bool { return e.Ended != nil && e.Ended.Status == 0 })
			}
			end()
			if left := list(t, dir); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestAFullOrNoexecFileSystemIsNamed(t *testing.T) {
	own := "unshare -m"
	if os.Getuid() != 0 {
		own += " -r"
	}
	if out, err := exec.Command("sh", "-c", own+" mount -t tmpfs none /mnt").CombinedOutput(); err != nil {
		// Reason: only a mount is a full disk, and mounts need a mount namespace of their own.
		t.Skipf("no mount namespaces here: %s", out)
	}
	prog := script(t, "exit 0\n"+strings.Repeat("#", 1<<20))
	for options, want := range map[string]string{
		"size=64k": "no space left on device: want room for 1048594 bytes there; free some, or choose another directory by --tmpdir",
		"noexec":   "is on a file system that is mounted noexec: choose another directory by --tmpdir",
	} {
		t.Run(options, func(t *testing.T) {
			dir := t.TempDir()
			l := launch(t, hostsJob{
				Hosts: []string{"localhost", hostB}, Args: []string{prog}, Preload: true, TmpDir: dir,
				Agent: fmt.Sprintf(`shift; exec %s sh -c "mount -t tmpfs -o %s none %s && $*"`, own, options, dir),
			})
			l.ends(exitNotRunning, "cannot start ranks on "+hostB+": prog: ", dir+"/tutti-", want, "0 of 2 ranks had started")
		})
	}
}

func TestProgramsThatCannotBeSentAreNamed(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o700); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		dir + "/none": "cannot start " + dir + "/none: no such file",
		fifo:          "cannot start " + fifo + ": got no regular file, want one for --preload-binary",
	} {
		j := hostsJob{Hosts: []string{hostB}, Args: []string{program}, Preload: true, TmpDir: dir}.job()
		if out := Run(t.Context(), j); !out.Broken || !slices.Contains(out.Verdict, want) {
			t.Errorf("got %+v, want %q", out, want)
		}
	}
}

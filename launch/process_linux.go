package launch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/tutti-go/tutti/internal/vars"
)

// rankAttr puts a rank into a separate process group, and asks the kernel to kill it when the
// launcher dies.
func rankAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// A process is one entry of the process table.
type process struct {
	pid, group int
	name       string
	zombie     bool
}

// String returns the name and the number of the process.
func (p process) String() string { return fmt.Sprintf("%s (%d)", p.name, p.pid) }

// groupAlive reports whether a process group has running members. Zombies do not count: if process
// 1 does not reap zombies, as in many containers, they stay forever, and a job that counted them
// would never end.
func groupAlive(pgid int) bool {
	// The kernel knows which process groups have no members, so this cheap check comes first.
	if syscall.Kill(-pgid, 0) != nil {
		return false
	}
	table, err := processes()
	if err != nil {
		return true // there is no /proc, so the kernel's answer decides
	}
	for _, p := range table {
		if p.group == pgid && !p.zombie {
			return true
		}
	}
	return false
}

// signalGroup signals all members of a process group. It ignores the error, which means that the
// group has no members.
func signalGroup(pgid int, s syscall.Signal) { syscall.Kill(-pgid, s) }

// membersOf returns the members of the process groups, and other processes with the name of the
// job's part in their environment.
func membersOf(groups map[int]bool, part string) []process {
	table, err := processes()
	if err != nil {
		return membersByGroup(groups)
	}
	var members []process
	for _, p := range table {
		if !p.zombie && (groups[p.group] || belongsTo(p.pid, part)) {
			members = append(members, p)
		}
	}
	return members
}

// membersByGroup replaces membersOf on a system without /proc. It lists each non-empty process
// group as one process. Zombies count as members here, because kill succeeds for them as well.
func membersByGroup(groups map[int]bool) []process {
	var members []process
	for pgid := range groups {
		if syscall.Kill(-pgid, 0) == nil {
			members = append(members, process{pid: pgid, group: pgid, name: "group"})
		}
	}
	return members
}

// signalDetached signals each process that has the name of the job's part in its environment and is
// in none of the process groups. A daemon that a rank has started is an example. signalDetached
// first pins the process, by a pidfd if the kernel has pidfds. It then checks the name again,
// because another process may have the number by then.
func signalDetached(groups map[int]bool, part string, s syscall.Signal) {
	table, _ := processes() // empty without /proc
	for _, p := range table {
		if p.zombie || groups[p.group] || !belongsTo(p.pid, part) {
			continue
		}
		pinned, err := os.FindProcess(p.pid)
		if err != nil {
			continue
		}
		if belongsTo(p.pid, part) {
			pinned.Signal(s) // an error means that the process has ended
		}
		pinned.Release()
	}
}

// belongsTo reports whether a process was started with the name of the job's part in its
// environment. It returns false for processes of other users, whose environment it cannot read. It
// also returns false for the name "", because a user may have set the variable to "".
func belongsTo(pid int, part string) bool {
	if pid == os.Getpid() || part == "" {
		return false
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	// The variables in the file are separated by zero bytes.
	want := []byte(vars.JobPart + "=" + part)
	for len(env) > 0 {
		var e []byte
		if e, env, _ = bytes.Cut(env, []byte{0}); bytes.Equal(e, want) {
			return true
		}
	}
	return false
}

// processes reads the process table. Processes that end meanwhile are omitted.
func processes() ([]process, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", d.Name(), "stat"))
		if err != nil {
			continue
		}
		if p, ok := parseStat(pid, string(text)); ok {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, os.ErrNotExist // /proc is not mounted
	}
	return all, nil
}

// parseStat parses "pid (name) state ppid pgrp ...", proc(5). The name may contain any character,
// even brackets and spaces. It ends at the last closing bracket of the text.
func parseStat(pid int, text string) (process, bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) < 3 {
		return process{}, false
	}
	group, err := strconv.Atoi(fields[2])
	zombie := fields[0] == "Z" || fields[0] == "X"
	return process{pid: pid, group: group, name: text[open+1 : end], zombie: zombie}, err == nil
}

// nameProcess sets the name that ps and killall use. Nothing depends on it.
func nameProcess(name string) { os.WriteFile("/proc/self/comm", []byte(name), 0) }

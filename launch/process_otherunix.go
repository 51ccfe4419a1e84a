//go:build unix && !linux

package launch

import (
	"fmt"
	"syscall"
)

// rankAttr puts a rank into a separate process group. This system has no parent-death signal, so
// only the guardian ends ranks whose launcher was killed.
func rankAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// A process stands for one process group, because this system offers no list of a group's
// members.
type process struct{ pid int }

func (p process) String() string { return fmt.Sprintf("process group %d", p.pid) }

func groupAlive(pgid int) bool { return syscall.Kill(-pgid, 0) == nil }

func signalGroup(pgid int, s syscall.Signal) { syscall.Kill(-pgid, s) }

// membersOf returns the process groups that have members.
func membersOf(groups map[int]bool, _ string) []process {
	var members []process
	for pgid := range groups {
		if groupAlive(pgid) {
			members = append(members, process{pgid})
		}
	}
	return members
}

// signalDetached does nothing, because this system does not show the environment of other
// processes.
func signalDetached(map[int]bool, string, syscall.Signal) {}

// nameProcess does nothing, because ps shows argv[0] on this system.
func nameProcess(string) {}

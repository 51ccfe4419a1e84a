//go:build !unix

package remote

import (
	"os"
	"syscall"
)

// ownGroup returns nothing: this system has no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }

func killGroup(p *os.Process) { p.Kill() }

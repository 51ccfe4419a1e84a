//go:build unix

package launch

import (
	"io"
	"os"
	"syscall"
	"time"
)

// A host runs processes of a job on one machine. A process is named by its index in run.ranks. The
// goroutine in Run calls the methods, and none of them waits for a process.
type host interface {
	// name returns the name of the machine, or "" if the job runs on this machine only.
	name() string
	// part returns the name of the job's part on the machine. Each process has this name in its
	// environment, by which the launcher finds the job's processes. Two hosts of a job may be one
	// machine, so each host has its own part.
	part() string
	// open returns this process's end of a stream. The other end belongs to a process that start is
	// about to start. The parameter id is the descriptor in that process: 0, 1 and 2 are pipes, pmiFD
	// and storeFD are connections.
	open(process, id int) (stream, error)
	// inherit passes a file of this process to a process that start is about to start, as descriptor
	// id. It returns false if the host is not the machine of this process.
	inherit(process, id int, f *os.File) bool
	// start starts a process, and returns its ID. If it fails, it closes the streams. On another
	// machine, start only sends a command and returns the ID 0. The answer then comes as an event;
	// see remoteHost.
	start(s *spec) (pid int, err *startError)
	// grow makes room in the record of ends for the processes with numbers below n.
	grow(n int)

	// signal signals the process group of a process. It does nothing if the group is empty.
	signal(process int, s syscall.Signal)
	// signalAll signals all process groups. If detached is set, it also signals processes outside
	// of them that have the part's name in their environment.
	signalAll(s syscall.Signal, detached bool)
	// calledInit says whether a process has called Init.
	calledInit(process int) initState
	// died notes the end of a rank on another machine in the record of ends.
	died(process int)
	// left describes the processes that the job has on the machine.
	left() []string
}

// A stream is one end of a pipe (*os.File, *tail) or of a connection (net.Conn).
type stream interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
}

// A spec describes a process to start.
type spec struct {
	process     int
	program     string // "" means that args[0] is to be found on the host
	args, env   []string
	dir         string // "" means the launcher's own
	cpus        []int  // the processors to which the process is bound; nil means those of the launcher
	credentials []byte // nil if the process inherits none
	preloaded   int    // the number of a program that was sent to the host; see remote.Start
	listener    bool   // the process inherits the listener
	merge       bool   // standard error is the same file as standard output
}

// An initState says whether a program of a rank has called Init.
type initState uint8

const (
	initUnknown initState = iota // the process may have called Init, or may still call it
	initCalled                   // the process has called Init
	initNever                    // the process has not called Init, and its process group is empty
)

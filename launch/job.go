package launch

import (
	"io"
	"os"
	"time"
)

// MaxRanks is the most ranks of one job. Waiting for a process holds a thread, and a Go program
// may have 10,000.
const MaxRanks = 4096

// A Job is what Run starts: one or more programs, whose ranks are numbered in the order of
// Apps. Run reads it and does not change it.
type Job struct {
	Apps []App
	Env  []string // what the ranks inherit, "NAME=value"; nil is this process's own environment

	Transport string // TUTTI_TRANSPORT for the ranks; "" leaves it as it is
	Report    bool   // the ranks print their choice of transports
	Plain     bool   // connections between hosts are not encrypted

	// Timeline is the file for the timeline of the ranks' coordinators, as Chrome's trace
	// events; "" makes no timeline. Ranks that are killed are missing from it.
	Timeline string

	// Recovery lets the other ranks go on when one has failed: they may shrink their communicator.
	// The job has ended well if at least one rank has.
	Recovery bool

	Tags    Tags
	Timeout time.Duration // how long the job may run; 0 is forever
	Grace   time.Duration // how long the other ranks may run after a rank has failed
	Quiet   bool          // print neither warnings nor notes
	Verbose bool          // print the processes as they start

	// Stdin is rank 0's standard input; nil is none. Run reads a terminal itself and copies it,
	// because a rank's group is never the foreground group of the terminal.
	Stdin *os.File

	// Stdout and Stderr receive what the ranks print. Without Tags, the ranks inherit Stdout if
	// it is a file. Standard error always passes through Run, which keeps each rank's last error
	// for the verdict.
	Stdout, Stderr io.Writer

	// Guardian is a program whose main function calls Main, as tuttirun itself. Run starts it as
	// the guardian, which ends the job if this process is killed. "" means no guardian.
	Guardian string
}

// An App is one program of a job and the number of ranks that run it.
type App struct {
	Ranks int
	Set   []string // variables of these ranks alone, "NAME=value"
	Dir   string   // working directory; "" is this process's own
	Args  []string // the program and its arguments
}

// Tags say how lines of output are marked with the rank that printed them.
type Tags uint8

// The ways to tag lines. Except with NoTags, each line is written as a whole.
const (
	NoTags  Tags = iota
	RankTag      // "[3] line"
	MPITag       // "[1,3]<stdout>:line", Open MPI's way
)

// An Outcome is how a job ended. The package comment has the exit codes.
type Outcome struct {
	Code    int      // the exit code for the launcher, see the package comment
	Verdict []string // what went wrong, for people; empty if nothing did
	Broken  bool     // a rank could not be started; printed even if Quiet
}

// The exit codes that do not come from a rank.
const (
	exitTimeline   = 1
	exitUsage      = 2
	exitTimeout    = 124
	exitNotRunning = 126
	exitNotFound   = 127
)

// killAfter is the time between TERM and KILL. A process that still exists killAfter after KILL
// counts as unkillable.
const killAfter = 2 * time.Second

package launch

import (
	"io"
	"os"
	"time"
)

// MaxRanks is the most ranks that one job may ask for. Waiting for a process
// holds a thread, and a Go program may have 10,000.
const MaxRanks = 4096

// A Job is what Run starts: one or more programs whose ranks form one world,
// numbered in the order of Apps.
type Job struct {
	Apps []App
	Env  []string // what the ranks inherit, "NAME=value"; nil is this process's own environment

	Transport string // TUTTI_TRANSPORT for the ranks; "" leaves it as it is
	Report    bool   // have the ranks print their choice of transports

	// Timeline names the file that gets what the ranks' coordinators did, as
	// Chrome's trace events; "" makes none. Ranks that are killed are not in it.
	Timeline string

	Tags    Tags
	Timeout time.Duration // the job's longest life; 0 is none
	Grace   time.Duration // what the others have once a rank has failed
	Quiet   bool          // print no warnings
	Verbose bool          // print the processes as they start

	// Stdin is rank 0's standard input; nil is none. A terminal is read by Run
	// and copied, because a rank's group is never the terminal's foreground.
	Stdin *os.File

	// Stdout and Stderr take what the ranks print. Without Tags a Stdout that is
	// a file is handed to the ranks as it is. Standard error always passes
	// through Run, which remembers each rank's last error for the verdict.
	Stdout, Stderr io.Writer

	// Guardian is a program whose main function calls Main (tuttirun itself):
	// it is started a second time to end the job should this process be killed.
	// "" goes without one.
	Guardian string
}

// An App is one program of a job and how many ranks run it.
type App struct {
	Ranks int
	Set   []string // variables of these ranks alone, "NAME=value"
	Dir   string   // working directory; "" is this process's own
	Args  []string // the program and its arguments
}

// Tags say how lines are marked with the rank that printed them.
type Tags uint8

// The ways to tag lines. With any but NoTags each line is written whole.
const (
	NoTags  Tags = iota
	RankTag      // "[3] line"
	MPITag       // "[1,3]<stdout>:line", Open MPI's way
)

// An Outcome is how a job ended.
type Outcome struct {
	Code    int      // the exit code for the launcher, see the package comment
	Verdict []string // what went wrong, for people; empty when nothing did
	Broken  bool     // some rank could not be started; said also to those who want no verdict
}

// The exit codes that are not a rank's.
const (
	exitUsage      = 2
	exitTimeout    = 124
	exitNotRunning = 126
	exitNotFound   = 127
)

// killAfter is what a process has between TERM and KILL, and between KILL and
// being given up as unkillable.
const killAfter = 2 * time.Second

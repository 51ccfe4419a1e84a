package launch

import (
	"cmp"
	"io"
	"os"
	"time"

	"github.com/tutti-go/tutti/launch/internal/placement"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// MaxRanks is the largest number of ranks of one job. Each wait for a process holds a thread, and a
// Go program may have 10,000 threads.
const MaxRanks = 4096

// A Job describes what Run starts: one or more programs, whose ranks are numbered in the order of
// Apps. Run reads the Job and does not change it.
type Job struct {
	Apps []App
	Env  []string // the environment that the ranks inherit, "NAME=value"; nil means this process's own environment

	// Hosts are the hosts that the ranks may run on; nil means this host. Placement says how they
	// are used.
	Hosts     []placement.Host
	Placement placement.Policy

	DisplayMap     bool // print which ranks run on which host
	ReportBindings bool // print the processors to which each rank is bound

	// Agent is the command that starts programs on other hosts, with its arguments; nil means ssh.
	// AgentArgs are further arguments for it.
	Agent, AgentArgs []string

	SSHPort     int    // 0 means what ssh chooses
	SSHIdentity string // the file of a private key; "" means what ssh chooses
	Remote      string // the path of tuttirun on the other hosts; "" means that of this program

	// FanOut is the maximum number of further hosts that this host, and each other host, connects
	// to. It bounds the number of ssh processes on one host; 0 means 32.
	FanOut int

	// Interface is the value of TUTTI_INTERFACE for the ranks of a job on several hosts; "" selects
	// none. On one host the ranks communicate over loopback, and Interface has no effect.
	Interface string

	// Starter starts tuttirun on the other hosts; nil means that Agent does.
	Starter remote.Starter

	// Preload sends the programs of all Apps to each other host, which stores them in a private
	// directory in TmpDir until the job ends. If TmpDir is "", the directory is $TMPDIR or
	// $XDG_RUNTIME_DIR of that host, or /tmp.
	Preload bool
	TmpDir  string

	Transport string // TUTTI_TRANSPORT for the ranks; "" leaves the variable unchanged
	Report    bool   // the ranks print their choice of transports
	Plain     bool   // connections between hosts are not encrypted

	ReportBootstrap bool // the ranks print how they have found the job

	ReportServers time.Duration // how often parameter servers print a table; 0: never

	// Timeline is the file for the timeline of the ranks' coordinators and parameter servers, as
	// Chrome's trace events; "" makes no timeline. Ranks that are killed are missing from it.
	Timeline string

	// Recovery lets the other ranks go on when a rank has failed, because they may shrink their
	// communicator. The job then succeeds if at least one rank succeeds.
	Recovery bool

	// Restarts is how many times a failed job is started again. A job is not started again if a
	// program cannot be executed (exit codes 126 and 127) or refuses its command line (2, without a
	// panic of Go). Nor is it after Timeout, or after the user or the context has asked for the end.
	Restarts int

	// Elastic lets processes become ranks of the running job; nil means that the ranks do not change.
	// Elastic needs Recovery, and with a discovery script a single App. The Apps' Ranks say how many
	// processes begin, unless there is a discovery script.
	Elastic *Elastic

	Output  Output
	Timeout time.Duration // how long the job may run, all starts together; 0 means no limit
	Grace   time.Duration // how long the other ranks may run after a rank has failed
	Quiet   bool          // print neither warnings nor notes
	Verbose bool          // print the processes as they start

	// Stdin is the standard input of the rank StdinRank in the first start of the job; nil means no
	// input. If it is a terminal, Run reads it and copies the input to the rank, because a rank's
	// process group is never the foreground process group of the terminal. With Elastic, the first
	// process in the slot StdinRank gets the input.
	Stdin     *os.File
	StdinRank int

	// Stdout and Stderr receive what the ranks print. The ranks inherit Stdout if it is a file and
	// Output leaves standard output unchanged. Standard error always passes through Run, which keeps
	// each rank's last error for the verdict.
	Stdout, Stderr io.Writer

	// Guardian is a program whose main function calls Main, such as tuttirun itself. Run starts it
	// as the guardian, which ends the job if this process is killed. "" means no guardian.
	Guardian string
}

// environ returns the environment of the job.
func (j *Job) environ() []string {
	if j.Env == nil {
		return os.Environ()
	}
	return j.Env
}

// starter returns the Starter that starts tuttirun on the other hosts. The function log gets what
// ssh and tuttirun print on these hosts. If log is nil, that text is dropped.
func (j *Job) starter(log func(host, line string)) remote.Starter {
	if j.Starter != nil {
		return j.Starter
	}
	program, _ := os.Executable()
	return &remote.SSH{
		Agent: j.Agent, Args: j.AgentArgs, Port: j.SSHPort, Identity: j.SSHIdentity,
		Program: cmp.Or(j.Remote, program), Log: log,
	}
}

// Elastic says which processes a job may have while it runs.
type Elastic struct {
	Min, Max  int           // bounds of the number of ranks; 0: as many as begin
	First     int           // how many ranks the first epoch needs, if that is more than Min; at most the number of slots at the start
	Restarts  int           // how many failed processes the job may start again, all slots together
	WaitLimit time.Duration // how long ranks in Rejoin or Init wait for a process before it is killed, and for the start of the epoch

	// Discovery is a command that prints a line "host:slots" for each host that ranks may run on. Run
	// executes it once per second. Its hosts replace the Job's Hosts. "" means that there is none,
	// and the number of slots is the sum of the Apps' Ranks.
	Discovery string

	// Cooldown holds the least and the largest pause before a slot gets a process again. The first
	// pause follows the second failure in a slot, and doubles with each further failure.
	Cooldown [2]time.Duration
}

// An App is one program of a job and the number of ranks that run it.
type App struct {
	Ranks int              // 0: as many as the slots of Hosts, and without hosts one per processor
	Hosts []placement.Host // the hosts of this program; nil: the Job's
	Set   []string         // variables of only these ranks, "NAME=value"
	Dir   string           // working directory; "" means this process's own
	Role  string           // "": none, or the name of the program's file if the job has several Apps
	Args  []string         // the program and its arguments
}

// An Outcome describes how a job ended. The package comment lists the exit codes.
type Outcome struct {
	Code    int      // the exit code for the launcher, see the package comment
	Verdict []string // what went wrong, as text for the user; empty if nothing did
	Broken  bool     // not all ranks could be started; Main then prints Verdict even if Quiet is set
}

// The exit codes that do not come from a rank.
const (
	exitUnwritten  = 1 // the timeline, or an output file, could not be written
	exitUsage      = 2
	exitTimeout    = 124
	exitNotRunning = 126
	exitNotFound   = 127
)

// killAfter is the time between TERM and KILL. A process that still exists killAfter after KILL is
// reported as one that cannot be killed.
const killAfter = 2 * time.Second

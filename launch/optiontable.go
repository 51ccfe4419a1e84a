package launch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/internal/version"
)

// An option is one line of the table of options. It has its names without dashes, the number of its
// arguments, and the function set, which applies it. An option without set is ignored, because
// scripts written for mpirun and mpiexec use it. One warning lists all ignored options, except
// those whose field accepted is true. An option with a text in rejected is an error, because
// ignoring it would change results.
type option struct {
	names    []string
	args     int
	operand  string // how messages and --help name the arguments
	help     string // "" omits the option from --help
	set      func(p *parser, args []string) error
	accepted bool
	rejected string
}

// options returns all options, including those that are ignored or rejected. Like mpirun, tuttirun
// accepts one dash or two.
func options() []option {
	return slices.Concat(ownOptions(), placeOptions(), agentOptions(), outputOptions(), tuneOptions(), compatOptions(), ignoredOptions(), rejectedOptions())
}

// ownOptions returns the main options. All of them have an effect, and --help lists all of them.
func ownOptions() []option {
	return []option{
		{names: []string{"np", "n", "c", "num-proc"}, args: 1, operand: "N", help: "how many ranks run the program (one per slot, or without hosts one per processor)",
			set: func(p *parser, a []string) (err error) { p.app.Ranks, err = count(a[0]); return }},
		{names: []string{"x"}, args: 1, operand: "NAME[=VALUE]", help: "set a variable for the program's ranks; repeatable",
			set: func(p *parser, a []string) error {
				v, ok, err := p.variable(a[0])
				if ok {
					p.app.Set = append(p.app.Set, v)
				}
				return err
			}},
		{names: []string{"wdir", "wd"}, args: 1, operand: "DIR", help: "run the program in this directory",
			set: func(p *parser, a []string) error { p.app.Dir = a[0]; return nil }},
		{names: []string{"path"}, args: 1, operand: "DIRS", help: "look for the program in these directories first; they come first in the ranks' PATH, too",
			set: func(p *parser, a []string) error { p.path = a[0]; return nil }},
		{names: []string{"preload-binary"}, help: "send the program to the other hosts, which remove it at the end; not the files that it needs",
			set: func(p *parser, _ []string) error { p.req.job.Preload = true; return nil }},
		{names: []string{"tmpdir"}, args: 1, operand: "DIR", help: "where other hosts store what --preload-binary sends ($TMPDIR or $XDG_RUNTIME_DIR there, or /tmp)",
			set: func(p *parser, a []string) error { p.req.job.TmpDir = a[0]; return nil }},
		{names: []string{"transport"}, args: 1, operand: "NAME", help: "the transport between ranks: auto, shm, tcp, grpc; tcp+verbs, grpc+verbs where built in (sets TUTTI_TRANSPORT)",
			set: func(p *parser, a []string) error { p.req.job.Transport = a[0]; return nil }},
		{names: []string{"report-transport"}, help: "have the ranks print which transport they use, and why",
			set: func(p *parser, _ []string) error { p.req.job.Report = true; return nil }},
		{names: []string{"report-bootstrap"}, help: "have the ranks print how they have found their job",
			set: func(p *parser, _ []string) error { p.req.job.ReportBootstrap = true; return nil }},
		{names: []string{"report-servers"}, args: 1, operand: "DURATION", help: "have each parameter server print a table of its tensors this often, in seconds or like 10m",
			set: func(p *parser, a []string) (err error) { p.req.job.ReportServers, err = duration(a[0]); return }},
		{names: []string{"insecure-plain"}, help: "INSECURE: do not encrypt connections between hosts (sets TUTTI_INSECURE_PLAIN)",
			set: func(p *parser, _ []string) error {
				p.req.job.Plain = true
				p.warn("INSECURE: connections between hosts are not encrypted (--insecure-plain): an attacker on the network path can read and change the data")
				return nil
			}},
		{names: []string{"timeline", "timeline-filename"}, args: 1, operand: "FILE", help: "write what the ranks' coordinators and parameter servers did, for Perfetto",
			set: func(p *parser, a []string) error { p.req.job.Timeline = a[0]; return nil }},
		{names: []string{"merge-timeline"}, args: 1, operand: "FILE", help: "make one timeline of FILE.rank0, FILE.rank1, ... and run nothing",
			set: func(p *parser, a []string) error { p.req.merge = a[0]; return nil }},
		{names: []string{"timeout"}, args: 1, operand: "DURATION", help: "end the job after this time, in seconds or like 10m; exit code 124",
			set: func(p *parser, a []string) (err error) { p.req.job.Timeout, err = duration(a[0]); return }},
		{names: []string{"grace"}, args: 1, operand: "DURATION", help: "the time that the other ranks have to report after a rank has failed (2s)",
			set: func(p *parser, a []string) (err error) { p.req.job.Grace, err = duration(a[0]); return }},
		{names: []string{"enable-recovery", "disable-auto-cleanup"}, help: "let the other ranks go on when one has failed; the exit code is 0 if at least one rank exits with 0",
			set: func(p *parser, _ []string) error { p.req.job.Recovery = true; return nil }},
		{names: []string{"restart-ranks", "reset-limit"}, args: 1, operand: "N", help: "start failed ranks again, N times in all; this and the next ones include --enable-recovery",
			set: func(p *parser, a []string) (err error) { p.elastic.Restarts, err = number(a[0]); return }},
		{names: []string{"restart", "max-restarts"}, args: 1, operand: "N", help: "start the job again when it fails, N times; not after exit codes 2 (without a panic), 126 and 127, --timeout, or a signal to tuttirun",
			set: func(p *parser, a []string) (err error) { p.req.job.Restarts, err = number(a[0]); return }},
		{names: []string{"min-np", "min-num-proc"}, args: 1, operand: "N", help: "end the job when fewer ranks are left (-np; with --enable-recovery alone: 1)",
			set: func(p *parser, a []string) (err error) { p.elastic.Min, err = count(a[0]); return }},
		{names: []string{"max-np", "max-num-proc"}, args: 1, operand: "N", help: "run at most N ranks, however many slots the script finds",
			set: func(p *parser, a []string) (err error) { p.elastic.Max, err = count(a[0]); return }},
		{names: []string{"host-discovery-script"}, args: 1, operand: "COMMAND", help: "start and end ranks as its lines host:slots say, in place of -H and --hostfile; it runs each second",
			set: func(p *parser, a []string) error { p.elastic.Discovery = a[0]; return nil }},
		{names: []string{"elastic-timeout"}, args: 1, operand: "DURATION", help: "kill ranks for which others wait in Rejoin this long; Init and Rejoin fail if the ranks then do not reach each other in this time (10m)",
			set: func(p *parser, a []string) (err error) {
				if p.elastic.WaitLimit, err = duration(a[0]); err == nil && p.elastic.WaitLimit == 0 {
					err = fmt.Errorf("got %q, want more than 0", a[0])
				}
				return err
			}},
		{names: []string{"blacklist-cooldown-range"}, args: 2, operand: "MIN MAX", help: "the pause before a slot that fails again is used (1s 1m)",
			set: func(p *parser, a []string) (err error) {
				for i := range p.elastic.Cooldown {
					if p.elastic.Cooldown[i], err = duration(a[i]); err != nil {
						return err
					}
				}
				if p.elastic.Cooldown[0] > p.elastic.Cooldown[1] {
					return fmt.Errorf("got %v to %v, want the smaller time first", p.elastic.Cooldown[0], p.elastic.Cooldown[1])
				}
				return nil
			}},
		{names: []string{"launcher-exec", "bootstrap-exec"}, args: 1, operand: "COMMAND", help: "reach other hosts by this command instead of ssh",
			set: func(p *parser, a []string) (err error) { p.req.job.Agent, err = splitWords(a[0]); return }},
		{names: []string{"bootstrap-exec-args"}, args: 1, operand: "ARGUMENTS", help: "further arguments of that command, or of ssh",
			set: func(p *parser, a []string) (err error) { p.req.job.AgentArgs, err = splitWords(a[0]); return }},
		{names: []string{"ssh-port", "p"}, args: 1, operand: "PORT", help: "the port of ssh on other hosts (as ssh chooses)",
			set: func(p *parser, a []string) error {
				n, err := strconv.ParseUint(a[0], 10, 16)
				if p.req.job.SSHPort = int(n); err != nil || n == 0 {
					return fmt.Errorf("got %q, want a port from 1 to 65535", a[0])
				}
				return nil
			}},
		{names: []string{"ssh-identity-file", "i"}, args: 1, operand: "FILE", help: "the private key for ssh (as ssh chooses)",
			set: func(p *parser, a []string) error { p.req.job.SSHIdentity = a[0]; return nil }},
		{names: []string{"launch-agent"}, args: 1, operand: "PATH", help: "where tuttirun is on other hosts (where it is here)",
			set: func(p *parser, a []string) error { p.req.job.Remote = a[0]; return nil }},
		{names: []string{"fan-out"}, args: 1, operand: "N", help: "let this host and each other one start at most N further hosts (32)",
			set: func(p *parser, a []string) (err error) { p.req.job.FanOut, err = count(a[0]); return }},
		{names: []string{"q", "quiet"}, help: "print no warnings and no verdict, only why a program cannot start",
			set: func(p *parser, _ []string) error { p.req.job.Quiet = true; return nil }},
		{names: []string{"v", "verbose"}, help: "print each rank's process as it starts",
			set: func(p *parser, _ []string) error { p.req.job.Verbose = true; return nil }},
		{names: []string{"V", "version", "info", "check-build", "cb"}, help: "print the version",
			set: func(p *parser, _ []string) error {
				p.req.print = func() string { return version.Line("tuttirun") + "\n" }
				return nil
			}},
		{names: []string{"man"}, help: "print the manual page, in the form that man reads",
			set: func(p *parser, _ []string) error { p.req.print = manual; return nil }},
		{names: []string{"completion"}, args: 1, operand: "bash|zsh|fish", help: "print a script that completes command lines in this shell",
			set: func(p *parser, a []string) error {
				text, err := completion(a[0])
				p.req.print = func() string { return text }
				return err
			}},
		{names: []string{"help", "h"}, help: "print this",
			set: func(p *parser, _ []string) error { p.req.print = usage; return nil }},
	}
}

// compatOptions returns options of other launchers that have an effect in tuttirun, or that ask for
// what tuttirun does anyway.
func compatOptions() []option {
	return []option{
		{names: []string{"allow-run-as-root"}, help: "accepted; running as root is always fine", accepted: true},
		{names: []string{"genv"}, args: 2, operand: "NAME VALUE",
			set: func(p *parser, a []string) error {
				v, ok, err := p.variable(a[0] + "=" + a[1])
				if ok {
					p.shared = append(p.shared, v)
				}
				return err
			}},
		{names: []string{"env"}, args: 2, operand: "NAME VALUE",
			set: func(p *parser, a []string) error {
				v, ok, err := p.variable(a[0] + "=" + a[1])
				if ok {
					p.app.Set = append(p.app.Set, v)
				}
				return err
			}},
		{names: []string{"genvlist"}, args: 1, operand: "NAME,...", help: "let ranks inherit only these variables, and PATH",
			set: func(p *parser, a []string) error {
				p.req.inherit = append(p.req.inherit, strings.Split(a[0], ",")...)
				p.req.limited = true
				return nil
			}},
		{names: []string{"genvnone"}, help: "let ranks inherit no variable except PATH",
			set: func(p *parser, _ []string) error { p.req.limited = true; return nil }},
		{names: []string{"stdin", "s"}, args: 1, operand: "RANK|none", help: "the rank that has the standard input (0); the others have none",
			set: func(p *parser, a []string) (err error) {
				switch a[0] {
				case "none":
					p.req.noInput = true
				case "all":
					return errors.New("got all, want one rank or none: a rank that does not read would hold up the others; let rank 0 broadcast what it reads")
				default:
					p.req.noInput = false
					if p.req.job.StdinRank, err = number(a[0]); err != nil {
						err = fmt.Errorf("%w, or none; in place of Open MPI's -s write --preload-binary", err)
					}
				}
				return err
			}},
		{names: []string{"gpath"}, args: 1, operand: "DIRS", help: "--path for all programs",
			set: func(p *parser, a []string) error { p.sharedPath = a[0]; return nil }},
		{names: []string{"gwdir", "gdir"}, args: 1, operand: "DIR", help: "-wdir for programs that have none",
			set: func(p *parser, a []string) error { p.sharedDir = a[0]; return nil }},
		{names: []string{"app", "configfile"}, args: 1, operand: "FILE", help: "take the programs from FILE: options, program and arguments on each line",
			set: func(p *parser, a []string) error { p.appFile = a[0]; return nil }},
	}
}

// ignoredOptions returns options for features that do not exist here. Ignoring them changes no
// results.
func ignoredOptions() []option {
	var all []option
	add := func(args int, operand string, accepted bool, names ...string) {
		for _, n := range names {
			all = append(all, option{names: []string{n}, args: args, operand: operand, accepted: accepted})
		}
	}
	// These options ask for what tuttirun always does.
	add(0, "", true, "genvall", "envall", "gloo", "mpi", "standalone", "no-python", "ordered-output", "cleanup")
	// Open MPI's
	add(1, "a value", false, "am", "tune", "prefix", "report-uri", "ompi-server", "hnp", "personality")
	add(0, "", false, "noprefix", "debug-daemons", "leave-session-attached", "novm", "get-stack-traces", "display-topo")
	// Hydra's and Intel's
	add(1, "a value", false, "membind", "rmk", "usize", "localhost", "topolib")
	add(0, "", false, "print-all-exitcodes", "pmi-port")
	// horovodrun's
	add(1, "a value", false, "start-timeout", "autotune-warmup-samples", "autotune-gaussian-process-noise", "thread-affinity", "num-nccl-streams", "log-level")
	add(0, "", false, "disable-cache", "hierarchical-allreduce", "no-hierarchical-allreduce", "hierarchical-allgather", "no-hierarchical-allgather",
		"torus-allreduce", "no-torus-allreduce", "timeline-mark-cycles", "no-timeline-mark-cycles", "log-without-timestamp", "log-with-timestamp")
	// torchrun's
	add(1, "a value", false, "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "monitor-interval", "start-method", "local-addr", "signals-to-handle")
	return all
}

// rejectedOptions returns options for features that do not exist here. If tuttirun ignored them,
// the job would not do what the user wants.
func rejectedOptions() []option {
	var all []option
	add := func(why string, names ...string) { all = append(all, option{names: names, rejected: why}) }
	add("not supported; -genvlist NAME,... holds for all programs", "envlist")
	add("not supported; -genvnone holds for all programs", "envnone")
	add("not supported; write -np 1 -H HOST:SLOTS PROGRAM for each rank, with ':' in between, or choose places by --map-by and --rank-by", "rankfile", "rf")
	add("not supported; put the files into a directory that all hosts share, or copy them with scp", "preload-files", "preload-files-dest-dir")
	add("not supported; choose a directory that each host has, by -wdir DIR", "set-cwd-to-session-dir")
	add("not supported; write the parameters of the file as options", "config-file")
	add("not supported; a program can choose a device by its local rank", "gpus-per-proc", "gpus-per-node")
	add("not supported; write host:slots in each line of the discovery script", "slots-per-host")
	add("not supported; a shell writes it: echo $$ >FILE; exec tuttirun ...", "report-pid")
	add("not supported; start the ranks by jsrun, without tuttirun", "jsrun")
	add("not supported; write python -m MODULE as the program", "m", "module")
	add("not supported; write python SCRIPT as the program", "run-path")
	add("not supported; --output-filename and --outfile-pattern write files", "log-dir", "r", "redirects", "t", "tee", "local-ranks-filter", "logs-specs")
	add("not supported; --display-map prints the places of a job that runs", "do-not-launch")
	add("not supported; write xterm -e gdb PROGRAM as the program", "xterm", "debug", "tv", "gdb")
	return all
}

// findOption returns the option with the given name, or nil.
func findOption(name string) *option {
	for _, o := range options() {
		if slices.Contains(o.names, name) {
			return &o
		}
	}
	return nil
}

// unknownOption returns an error that suggests the closest name, at most two edits away.
func unknownOption(spelled, name string) error {
	best, distance := "", 3
	for _, o := range options() {
		for _, n := range o.names {
			if d := edits(name, n); d < distance && d < len(n) {
				best, distance = n, d
			}
		}
	}
	if best == "" {
		return usagef("unknown option %s; see --help, and use -- before a program whose name begins with a dash", spelled)
	}
	return usagef("unknown option %s; did you mean %s?", spelled, dashed(best))
}

// dashed writes an option as users do: short names with one dash.
func dashed(name string) string {
	if len(name) <= 2 {
		return "-" + name
	}
	return "--" + name
}

// edits returns the Levenshtein distance between two short words.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

const usageHead = `usage: tuttirun [options] program [arguments] [: [options] program [arguments]]...

Starts the ranks of a job, on this host and on others, and ends them together.
Options take one dash or two, and stand before the program:

`

const usageTail = `
-np, -x, -wdir, --path and -host hold for one program, all others for the job.
Common options of mpirun and mpiexec that mean nothing here are ignored with a
warning.

tuttirun doctor -H HOSTS checks the hosts before a job: tuttirun doctor --help.

Ranks get their rank and size also under the names of mpirun, mpiexec, torchrun
and horovodrun; a value given by -x wins. Programs of MPICH run without mpiexec.

When a rank fails, the others have --grace to report and exit by themselves,
then they get TERM, and 2 s later KILL. INT, TERM, HUP and QUIT are forwarded
once; the second time the ranks get TERM, the third time KILL. The exit code is
the first failing rank's (128+n for signal n), 124 after --timeout, 126 or 127
when a program cannot be started, 2 when the command line is wrong.
`

// helpColumn is the column at which --help describes options.
const helpColumn = 26

// wrap breaks text into lines that end before column 80. All lines but the first are indented.
func wrap(text string, indent int) string {
	var b strings.Builder
	column := indent
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == indent:
		case column+1+len(word) < 80:
			b.WriteByte(' ')
			column++
		default:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// usage returns the text of --help.
func usage() string {
	var b strings.Builder
	b.WriteString(usageHead)
	for _, o := range options() {
		if o.help == "" {
			continue
		}
		var names []string
		for _, n := range o.names {
			names = append(names, dashed(n))
		}
		left := strings.TrimRight(strings.Join(names, ", ")+" "+o.operand, " ")
		if len(left) > helpColumn-3 {
			left += "\n" + strings.Repeat(" ", helpColumn)
		}
		fmt.Fprintf(&b, "  %-*s%s\n", helpColumn-2, left, wrap(o.help, helpColumn))
	}
	b.WriteString(usageTail)
	return b.String()
}

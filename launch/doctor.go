package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/tutti-go/tutti/launch/internal/doctor"
	"github.com/tutti-go/tutti/launch/internal/placement"
)

// A doctorRequest is the command line of tuttirun doctor.
type doctorRequest struct {
	job     Job // hosts, and how programs are started there
	options doctor.Options
	json    bool
	help    bool
}

// parseDoctor reads the arguments after "doctor": --json, --listen, and all options of tuttirun.
// Options about the job itself have no effect.
func parseDoctor(args, env []string) (*doctorRequest, error) {
	r := new(doctorRequest)
	p := &parser{env: env}
	if err := p.readVariables(); err != nil {
		return nil, err
	}
	for len(args) > 0 && !p.req.needsNoProgram() {
		name, value, joined := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(args[0], "-"), "-"), "=")
		switch {
		case !strings.HasPrefix(args[0], "-"):
			return nil, usagef("doctor: got %q, want options only; see tuttirun doctor --help", args[0])
		case name == "json" && !joined:
			r.json, args = true, args[1:]
		case name == "listen" && joined:
			r.options.Ports, args = value, args[1:]
		case name == "listen" && len(args) > 1:
			r.options.Ports, args = args[1], args[2:]
		default:
			used, err := p.parseOption(args)
			if err != nil {
				return nil, err
			}
			args = args[used:]
		}
	}
	p.req.job.Apps = []App{p.app}
	if r.help = p.req.needsNoProgram(); r.help {
		return r, nil
	}
	if ports := r.options.Ports; ports != "" && ports[0] != ':' {
		return nil, usagef("--listen: got %q, want ports alone, such as :7000-7099", ports)
	}
	if err := p.finishHosts(); err != nil {
		return nil, err
	}
	if err := p.finishAgents(); err != nil {
		return nil, err
	}
	r.job, r.options.Interface = p.req.job, p.req.job.Interface
	if r.job.Hosts == nil {
		r.job.Hosts = []placement.Host{{Name: "localhost"}}
	}
	return r, nil
}

// doctorUsage is the text of tuttirun doctor --help.
const doctorUsage = `usage: tuttirun doctor [options]

Checks whether hosts can run the ranks of a job, and prints what it finds, with
a remedy for each fault. The exit code is 1 if there is a fault.

  -H HOST[:SLOTS],...      the hosts (this host)
  --hostfile FILE          the same from a file
  --interface LIST         the network interfaces between hosts
  --listen :FIRST-LAST     the ports at which ranks listen (the system chooses)
  --json                   print the report as JSON

Hosts are named and reached as by tuttirun; see tuttirun --help.
`

// doctorMain runs the program "tuttirun doctor", and returns its exit code.
func doctorMain(args, env []string, stdout io.Writer, log *lineWriter) int {
	r, err := parseDoctor(args, env)
	switch {
	case err != nil:
		log.logf("%v", err)
		return exitUsage
	case r.help:
		if _, err := io.WriteString(stdout, doctorUsage); err != nil {
			return 1
		}
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	starter := r.job.starter(nil)
	for _, h := range r.job.Hosts {
		t := doctor.Target{Name: h.Name, Slots: h.Slots, Start: doctor.Local, LookUp: func(ctx context.Context) string { return lookedUp(ctx, h.Name) }}
		if !isHere(h.Name) {
			t.Start = func(ctx context.Context) (io.ReadWriteCloser, error) { return starter.Start(ctx, h.Name, probeVerb) }
		}
		r.options.Targets = append(r.options.Targets, t)
	}
	report := doctor.Examine(ctx, r.options)
	if r.json {
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		err = out.Encode(report)
	} else {
		err = doctor.Print(stdout, report)
	}
	if err != nil {
		log.logf("doctor: %v", err)
	}
	if err != nil || len(report.Faults) > 0 || ctx.Err() != nil {
		return 1
	}
	return 0
}

// The verbs of the command line: as its first argument, each selects what tuttirun does in place of
// running a job. A program with such a name is run by its path, or after "--".
const (
	doctorVerb = "doctor"
	probeVerb  = "probe"
)

// probeMain runs the program "tuttirun probe", which tuttirun doctor starts on each host.
func probeMain(args []string, stdin io.Reader, stdout io.Writer, log *lineWriter) int {
	err := fmt.Errorf("probe: got %q, want no arguments", args)
	if len(args) == 0 {
		err = doctor.Serve(stdin, stdout)
	}
	if err != nil {
		log.logf("%v", err)
		return 1
	}
	return 0
}

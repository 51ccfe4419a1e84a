package launch

import (
	"context"
	"io"
	"os"
	"runtime"
)

// Main is the program tuttirun. It reads the command line in args, whose first element is the
// program's own name, runs the job, prints the verdict, and returns the exit code. If the program's
// name is the name of the guardian, Main runs as the guardian instead.
func Main(args, env []string, stdin, stdout, stderr *os.File) int {
	if len(args) > 0 && args[0] == guardianName {
		return guardMain(args[1:])
	}
	log := &lineWriter{w: stderr}
	if len(args) > 1 {
		switch args[1] {
		case "remote":
			return remoteMain(args[2:], stderr)
		case "agent":
			return agentMain(args[2:], stdout, stderr)
		case doctorVerb:
			return doctorMain(args[2:], env, stdout, log)
		case probeVerb:
			return probeMain(args[2:], stdin, stdout, log)
		}
	}
	req, err := parse(args[min(1, len(args)):], env)
	switch {
	case err != nil:
		log.logf("%v", err)
		return exitUsage
	case req.print != nil:
		if _, err := io.WriteString(stdout, req.print()); err != nil {
			return 1
		}
		return 0
	case req.merge != "":
		if err := mergeParts(req.merge); err != nil {
			log.logf("--merge-timeline: %v", err)
			return exitNotRunning
		}
		return 0
	}
	j := &req.job
	if !j.Quiet {
		for _, w := range req.warnings {
			log.logf("%s", w)
		}
	}
	j.Env, j.Stdout, j.Stderr, j.Guardian = req.environ(env), stdout, stderr, self()
	if !req.noInput {
		j.Stdin = stdin
	}
	out := Run(context.Background(), j)
	// A program that cannot be started is reported even with --quiet.
	if !j.Quiet || out.Broken {
		for _, line := range out.Verdict {
			log.logf("%s", line)
		}
	}
	return out.Code
}

// self returns the path of this program, which is started again as the guardian. On Linux it is the
// link in /proc, which stays valid after the file has been replaced or removed.
func self() string {
	const link = "/proc/self/exe"
	if _, err := os.Stat(link); err == nil && runtime.GOOS == "linux" {
		return link
	}
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}

package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Starter starts tuttirun on a host, with the given verb as its only argument, and connects to its
// standard input and output. Its errors do not name the host.
type Starter interface {
	Start(ctx context.Context, host, verb string) (io.ReadWriteCloser, error)
}

// An SSH is a Starter that runs ssh, or another command with ssh's arguments. It adds no option
// that would weaken the check of host keys. Keys, ports and known hosts come from the user's ssh
// configuration.
type SSH struct {
	Agent    []string // the command that replaces ssh, with its own options; nil means ssh
	Args     []string // further arguments before the host's name
	Port     int      // 0 means what ssh chooses
	Identity string   // the file of a private key; "" means what ssh chooses
	Program  string   // the path of tuttirun on the other hosts

	// Log gets the lines that ssh and the other host's tuttirun print to standard error. It may be
	// called concurrently.
	Log func(host, line string) `json:"-"`
}

// Start starts ssh. It returns before ssh has connected.
func (s *SSH) Start(ctx context.Context, host, verb string) (io.ReadWriteCloser, error) {
	return s.start(host, verb)
}

func (s *SSH) start(host, verb string) (*process, error) {
	if host == "" || strings.HasPrefix(host, "-") {
		return nil, fmt.Errorf("%q is no name of a host", host)
	}
	argv := s.command(host, verb)
	p, err := startProcess(argv, func(line string) {
		if s.Log != nil {
			s.Log(host, line)
		}
	})
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("there is no %s here: install it (Debian's openssh-client), or name another command by --mca plm_rsh_agent", argv[0])
	}
	if err != nil {
		return nil, fmt.Errorf("cannot run %s: %w", argv[0], err)
	}
	p.program, p.agent, p.host = s.Program, argv[0], host
	return p, nil
}

// command returns the command line. It contains no data of the job, because other users can read
// command lines.
func (s *SSH) command(host, verb string) []string {
	argv := slices.Clone(s.Agent)
	if len(argv) == 0 {
		argv = []string{"ssh"}
	}
	if filepath.Base(argv[0]) == "ssh" {
		// Use no X11 and no terminal, and ask the user nothing, because nobody would answer.
		argv = append(argv, "-x", "-T", "-o", "BatchMode=yes")
	}
	if s.Port != 0 {
		argv = append(argv, "-p", strconv.Itoa(s.Port))
	}
	if s.Identity != "" {
		argv = append(argv, "-i", s.Identity)
	}
	argv = append(argv, s.Args...)
	return append(argv, host, "exec "+quote(s.Program)+" "+verb)
}

// quote quotes a path for the shell of the other host.
func quote(path string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,@", r)
	}
	if path != "" && !strings.ContainsFunc(path, func(r rune) bool { return !plain(r) }) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// complaints maps texts that ssh prints before it gives up to explanations for the user. The texts
// are in lower case. The first one that is found counts. HOST stands for the host's name.
var complaints = []struct{ text, meaning string }{
	{"could not resolve hostname", "unknown host: check its name, and what the resolver and ssh's configuration say"},
	{"host identification has changed", "its host key has changed: find out why, and then remove the old key by ssh-keygen -R HOST"},
	{"host key verification failed", "its host key is not known: run ssh HOST once, and compare the key"},
	{"permission denied (", "it refuses the key: ssh HOST must work without a password; --ssh-identity-file names a key"},
	{"connection refused", "nothing listens on its port of ssh: start sshd there, or name the port by --ssh-port"},
	{"no route to host", "there is no route to it: is it up?"},
	{"network is unreachable", "there is no route to it: is it up?"},
	{"connection timed out", "it does not answer ssh: is it up, and does a firewall let ssh through?"},
}

// explainSSH returns why ssh has ended before tuttirun answered. The parameter code is ssh's exit
// code, or -1 if it has none, and lines are the last lines that ssh has printed.
func (p *process) explainSSH(err error, code int, lines []string) error {
	for _, c := range complaints {
		for _, line := range lines {
			if strings.Contains(strings.ToLower(line), c.text) {
				return errors.New(strings.ReplaceAll(c.meaning, "HOST", p.host))
			}
		}
	}
	last := ""
	if len(lines) > 0 {
		last = fmt.Sprintf(": %q", lines[len(lines)-1])
	}
	switch code {
	case 126:
		return fmt.Errorf("%s cannot be run there%s: install the same version there, or name it by --launch-agent", p.program, last)
	case 127:
		return fmt.Errorf("%s is missing there%s: install the same version there, or name it by --launch-agent", p.program, last)
	case -1:
		return fmt.Errorf("%w%s", err, last)
	}
	return fmt.Errorf("%w: %s ended with exit code %d%s", err, p.agent, code, last)
}

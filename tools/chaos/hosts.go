//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// rootOnHost0 is where rank 0 listens on the first pseudo-host. Each trial has hosts of its own, so
// the port is free.
const rootOnHost0 = "10.77.0.10:7000"

// A lab is a set of pseudo-hosts: network namespaces that a bridge joins. See tools/hosts, which
// makes them, and which the director finds from the root of the repository.
type lab struct{ tool, dir string }

// labPattern returns the pattern of os.MkdirTemp for the directories of this director's labs.
func labPattern() string { return fmt.Sprintf("tutti-chaos.%d.*", os.Getpid()) }

// newLab makes n hosts. The caller calls down unless newLab fails.
func newLab(n int) (*lab, error) {
	tool, err := filepath.Abs("tools/hosts")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", labPattern())
	if err != nil {
		return nil, err
	}
	l := &lab{tool, dir}
	if err := l.run("up", strconv.Itoa(n)); err != nil {
		return nil, errors.Join(err, l.down())
	}
	return l, nil
}

// noHosts returns why no pseudo-hosts can be made here, or nil if they can.
func noHosts() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	l, err := newLab(1)
	if err != nil {
		return err
	}
	return l.down()
}

// run runs the tool.
func (l *lab) run(args ...string) error {
	cmd := exec.Command(l.tool, args...)
	cmd.Env = append(os.Environ(), l.setting())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("hosts %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// setting returns the environment variable that tells the tool which hosts are meant.
func (l *lab) setting() string { return "HOSTS_LAB=" + l.dir }

// command returns a command that runs a program on a host. The tool becomes the program, so the
// process is the program's. The environment of the command needs the setting.
func (l *lab) command(host int, program string) *exec.Cmd {
	return exec.Command(l.tool, "in", hostName(host), program)
}

// cut takes down the link of a host.
func (l *lab) cut(host int) error { return l.run("cut", hostName(host)) }

// heal ends a cut.
func (l *lab) heal(host int) error { return l.run("heal", hostName(host)) }

// down ends all processes of the hosts and removes the hosts.
func (l *lab) down() error { return l.run("down") }

// removeLabs removes all hosts of this director.
func removeLabs() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), labPattern())) // cannot fail, because the pattern is well-formed
	for _, dir := range dirs {
		if tool, err := filepath.Abs("tools/hosts"); err == nil {
			(&lab{tool, dir}).down()
		}
	}
}

// hostName returns the name that the tool gives a host.
func hostName(host int) string { return "n" + strconv.Itoa(host) }

// hostOf returns the host of a rank. The ranks are dealt out to the hosts in turn.
func (t *trial) hostOf(r int) int {
	if t.hosts == 0 {
		return 0
	}
	return r % t.hosts
}

// localRank returns a rank's number among the ranks of its host, and the number of these ranks.
func (t *trial) localRank(r int) (local, size int) {
	for other := range t.ranks {
		if t.hostOf(other) != t.hostOf(r) {
			continue
		}
		if other < r {
			local++
		}
		size++
	}
	return local, size
}

// isCutOff reports whether the fault cuts a rank's host off from the others.
func (t *trial) isCutOff(r int) bool { return t.fault.cutsHost && t.hostOf(r) == t.hostOf(t.victim) }

// across returns the ranks from which the fault cuts rank r off.
func (t *trial) across(r int) (all []int) {
	for other := range t.ranks {
		if t.isCutOff(other) != t.isCutOff(r) {
			all = append(all, other)
		}
	}
	return all
}

// hasQuorum reports whether the ranks on rank r's side of a cut may go on: they are more than half
// of all ranks, or half with rank 0.
func (t *trial) hasQuorum(r int) bool {
	side := t.ranks - len(t.across(r))
	return 2*side > t.ranks || 2*side == t.ranks && t.isCutOff(r) == t.isCutOff(0)
}

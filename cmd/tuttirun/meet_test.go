//go:build unix

package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/bootstrap"
)

func dial(addr string) (io.Closer, error) { return net.Dial("tcp", addr) }

func acceptAll(job *bootstrap.Job) error {
	l, err := job.Listen(context.Background())
	if err != nil {
		return err
	}
	defer l.Close()
	for range job.Size - 1 {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		c.Close()
	}
	return nil
}

// Package bootstrap must be able to read what this launcher writes: every rank finds the others
// through a port that was bound before any of them ran.
func TestRanksMeetAtTheInheritedListener(t *testing.T) {
	t.Parallel()
	j := start(t, append([]string{"-np", "3"}, role(t, "meet")...)...)
	j.expect("0 of 3 met, secret of 16", "1 of 3 met, secret of 16", "2 of 3 met, secret of 16")
	j.ends(0)
}

func TestRanksAreNumberedOverAllPrograms(t *testing.T) {
	t.Parallel()
	const show = `echo "$1 $TUTTI_RANK/$TUTTI_SIZE $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE $A $(pwd) w=$WORLD_SIZE p=$PMI_FD t=$TUTTI_TRANSPORT"`
	j := start(t, "-np", "2", "-x", "A=1", "--transport", "tcp", "-wdir", "/", "sh", "-c", show, "sh", "x",
		":", "-np", "1", "-wdir", "/dev", "sh", "-c", show, "sh", "y")
	j.expect("x 0/3 0/3 1 / w=3 p=6 t=tcp", "x 1/3 1/3 1 / w=3 p=6 t=tcp", "y 2/3 2/3  /dev w=3 p=6 t=tcp")
	j.ends(0)
}

func TestSecretsDifferAndStayOffCommandLines(t *testing.T) {
	t.Parallel()
	secret := func() string {
		// The secret is the second line of the file that the rank inherits. It fits in one line.
		j := start(t, "-np", "1", "-v", "sh", "-c", `sed -n 2p <&$TUTTI_SECRET_FD; cat /proc/$$/cmdline /proc/$$/environ /proc/$PPID/cmdline 2>/dev/null | tr '\0' ' '`)
		s := j.line()
		rest := j.line()
		stderr := j.ends(0)
		if raw, err := base64.StdEncoding.DecodeString(s); err != nil || len(raw) != 16 || strings.Contains(rest, s) || strings.Contains(rest, hex.EncodeToString(raw)) || strings.Contains(stderr, s) {
			t.Errorf("secret %q; command lines %q; said %q", s, rest, stderr)
		}
		return s
	}
	if a, b := secret(), secret(); a == b {
		t.Errorf("two jobs have the secret %s", a)
	}
}

func TestStandardInputGoesToRankZero(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "3", "sh", "-c", `echo "$TUTTI_RANK read $(cat | tr '\n' ' ')"`)
	j.expect("1 read ", "2 read ")
	if _, err := io.WriteString(j.stdin, "some\nlines\n"); err != nil {
		t.Fatal(err)
	}
	j.stdin.Close()
	j.expect("0 read some lines ")
	j.ends(0)
}

func TestTaggedOutputComesInWholeLines(t *testing.T) {
	t.Parallel()
	// Each rank writes its lines in parts, and does not finish the last one.
	const pieces = `for i in 1 2 3 4 5; do printf a; printf "$TUTTI_RANK"; printf 'b\n'; done; printf "e$TUTTI_RANK" >&2; printf end`
	j := start(t, "-l", "-np", "4", "sh", "-c", pieces)
	got := make(map[string]int)
	for range 24 {
		got[j.line()]++
	}
	for _, r := range []string{"0", "1", "2", "3"} {
		if got["["+r+"] a"+r+"b"] != 5 || got["["+r+"] end"] != 1 {
			t.Errorf("rank %s: got %v", r, got)
		}
	}
	stderr := j.ends(0)
	lines := strings.Fields(stderr)
	slices.Sort(lines)
	if want := "[0] [1] [2] [3] e0 e1 e2 e3"; strings.Join(lines, " ") != want {
		t.Errorf("standard error is %q", stderr)
	}

	j = start(t, "--tag-output", "-np", "1", "echo", "x")
	j.expect("[1,0]<stdout>:x")
	j.ends(0)
}

//go:build unix

package bootstrap

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/vars"
)

// asRank gives this process the environment of a rank, until the test ends.
func asRank(t *testing.T, rank int) {
	t.Helper()
	for name, value := range map[string]string{
		vars.Rank: strconv.Itoa(rank), vars.Size: "3", vars.Root: "127.0.0.1:4000", vars.Job: "train", vars.Incarnation: "2",
	} {
		t.Setenv(name, value)
	}
	t.Setenv(vars.Secret, "")
	t.Setenv(vars.SecretFD, "")
	t.Cleanup(func() { inherited.secret, inherited.bundle = nil, nil })
}

// bundleOf returns the bundle of a rank.
func bundleOf(t *testing.T, job string, rank int) []byte {
	t.Helper()
	ca, err := jobca.New(job)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.Issue(rank, 2)
	if err != nil {
		t.Fatal(err)
	}
	text, err := (&jobca.Bundle{Secret: []byte("the launcher's secret"), Credentials: c}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// descriptor returns a descriptor of a file with this content, which a child would inherit.
func descriptor(t *testing.T, content []byte) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// isOpen reports whether fd is a descriptor.
func isOpen(fd int) bool {
	var s syscall.Stat_t
	return syscall.Fstat(fd, &s) == nil
}

func TestChildrenDoNotInheritTheSecretAndALaterFindHasIt(t *testing.T) {
	asRank(t, 1)
	t.Setenv(vars.Secret, testSecret)
	for i := range 2 {
		j, err := Find(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(j.Secret) != 16 || j.Secret[15] != 15 {
			t.Errorf("call %d: got the secret %x, want %s", i, j.Secret, testSecret)
		}
		if v, set := os.LookupEnv(vars.Secret); set {
			t.Errorf("call %d: a child would inherit %s=%s", i, vars.Secret, v)
		}
	}
	// A variable that is set later must replace the kept secret, and Options.Secret must replace
	// both.
	t.Setenv(vars.Secret, strings.Repeat("ab", 16))
	if j, err := Find(Options{}); err != nil || j.Secret[0] != 0xab {
		t.Errorf("got %x and %v, want the secret that was set last", j.Secret, err)
	}
	t.Setenv(vars.Secret, testSecret)
	j, err := Find(Options{Secret: bytes.Repeat([]byte{7}, 16)})
	if _, set := os.LookupEnv(vars.Secret); err != nil || j.Secret[0] != 7 || set {
		t.Errorf("got %x and %v, still in the environment: %v; want the secret of Options, and the other one gone", j.Secret, err, set)
	}
}

func TestWithALookupOfTheProgramTheEnvironmentStays(t *testing.T) {
	asRank(t, 1)
	t.Setenv(vars.Secret, testSecret)
	fd := descriptor(t, bundleOf(t, "train", 1))
	defer syscall.Close(fd)
	t.Setenv(vars.SecretFD, strconv.Itoa(fd))
	j, err := Find(Options{Lookup: os.LookupEnv})
	if err != nil || string(j.Secret) != "the launcher's secret" {
		t.Fatalf("got %q and %v, want the launcher's secret", j.Secret, err)
	}
	if os.Getenv(vars.Secret) == "" || os.Getenv(vars.SecretFD) == "" || !isOpen(fd) {
		t.Error("the environment or the descriptor is gone")
	}
}

func TestARankReadsItsCredentialsOnceAndKeepsThem(t *testing.T) {
	for _, kind := range []string{"file", "pipe"} {
		t.Run(kind, func(t *testing.T) {
			asRank(t, 1)
			text := bundleOf(t, "train", 1)
			var fd int
			if kind == "file" {
				fd = descriptor(t, text)
				// Another process may have read the file before, and the processes share its
				// position.
				syscall.Seek(fd, 0, 2)
			} else {
				var p [2]int
				if err := syscall.Pipe(p[:]); err != nil {
					t.Fatal(err)
				}
				syscall.Write(p[1], text)
				syscall.Close(p[1])
				fd = p[0]
			}
			t.Setenv(vars.SecretFD, strconv.Itoa(fd))
			for range 2 {
				j, err := Find(Options{})
				if err != nil {
					t.Fatal(err)
				}
				c, err := j.Credentials()
				if err != nil || c == nil || c.Name() != jobca.NewName("train", 2, 1) || string(j.Secret) != "the launcher's secret" {
					t.Errorf("got %v, %v and the secret %q", c, err, j.Secret)
				}
				if _, set := os.LookupEnv(vars.SecretFD); set || isOpen(fd) {
					t.Errorf("a child would inherit the variable: %v, or the descriptor: %v", set, isOpen(fd))
				}
			}
			// The Find of another rank must not get these credentials.
			t.Setenv(vars.Rank, "2")
			if j, err := Find(Options{}); err != nil || len(j.Secret) > 0 || j.credentials != nil {
				t.Errorf("rank 2 got %q and %v, want nothing of rank 1's", j.Secret, err)
			}
		})
	}
}

func TestADescriptorOfAnotherRankOrJobIsRefusedAndStaysOpen(t *testing.T) {
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"another rank": {bundleOf(t, "train", 2), "holds the credentials of tutti:"},
		"another job":  {bundleOf(t, "test", 1), "holds the credentials of tutti:"},
		"another file": {[]byte("root:x:0:0"), "holds no credentials"},
		"a large file": {bytes.Repeat([]byte("x"), jobca.MaxBundle+1), "got more than"},
	} {
		t.Run(name, func(t *testing.T) {
			asRank(t, 1)
			fd := descriptor(t, c.content)
			defer syscall.Close(fd)
			t.Setenv(vars.SecretFD, strconv.Itoa(fd))
			_, err := Find(Options{})
			if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), vars.SecretFD) {
				t.Errorf("got %v, want a refusal with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "the launcher's secret") {
				t.Errorf("%v shows the secret", err)
			}
			if !isOpen(fd) {
				t.Error("a descriptor that may be somebody else's was closed")
			}
		})
	}
	asRank(t, 1)
	t.Setenv(vars.SecretFD, "987654")
	if _, err := Find(Options{}); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "bad file descriptor") {
		t.Errorf("a descriptor that is not open: got %v, want a refusal", err)
	}
}

func TestCredentialsFollowFromTheSecret(t *testing.T) {
	find := func(env string) *Job {
		t.Helper()
		j, err := finderOf(strings.Split("TUTTI_RANK=1 TUTTI_SIZE=3 TUTTI_ROOT=127.0.0.1:4000 TUTTI_JOB=train TUTTI_INCARNATION=2 "+env, " ")...).find(Options{})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	c, err := find("TUTTI_SECRET=" + testSecret).Credentials()
	if err != nil || c == nil || c.Name() != jobca.NewName("train", 2, 1) {
		t.Errorf("got %v and %v, want rank 1's", c, err)
	}
	if c, err := find("A=1").Credentials(); c != nil || err != nil {
		t.Errorf("without a secret: got %v and %v, want nothing", c, err)
	}
	if j := find("TUTTI_INSECURE_PLAIN=1"); !j.Plain {
		t.Error("TUTTI_INSECURE_PLAIN=1 has no effect")
	}
}

// TUTTI_SECRET_FD may name a descriptor that is now something else's: a pipe or a socket that
// nobody writes to. Find must fail in time.
func TestADescriptorWithoutBytesEndsFind(t *testing.T) {
	var pipe [2]int
	if err := syscall.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	socket, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{pipe[0], pipe[1], socket[0], socket[1]} {
		t.Cleanup(func() { syscall.Close(fd) })
	}
	for what, fd := range map[string]int{"pipe": pipe[0], "socket": socket[0]} {
		asRank(t, 1)
		t.Setenv(vars.SecretFD, strconv.Itoa(fd))
		ended := make(chan error, 1)
		go func() {
			_, err := Find(Options{})
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), vars.SecretFD) {
				t.Errorf("%s: got %v, want a refusal that names %s", what, err, vars.SecretFD)
			}
		case <-time.After(5 * pipeTimeout):
			t.Fatalf("%s: Find waits", what)
		}
	}
}

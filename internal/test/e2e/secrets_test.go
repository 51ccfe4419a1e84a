//go:build unix

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/vars"
)

// encodings returns what a secret looks like in texts.
func encodings(secret []byte) [][]byte {
	standard := base64.StdEncoding.EncodeToString(secret)
	return [][]byte{
		secret, []byte(hex.EncodeToString(secret)), []byte(strings.ToUpper(hex.EncodeToString(secret))),
		[]byte(strings.TrimRight(standard, "=")),
	}
}

// findSecrets has rank 0 look for the job's secret in the command lines and the environments of all
// processes, while all ranks run, and has each rank start a child that looks at what it inherits.
func findSecrets(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	job, err := bootstrap.Find(bootstrap.Options{})
	if err != nil {
		return err
	}
	if len(job.Secret) < 16 {
		return fmt.Errorf("a second look finds %d bytes of a secret", len(job.Secret))
	}
	child, err := exec.Command("sh", "-c", "cat /proc/self/environ; ls -l /proc/self/fd").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, child)
	}
	for _, text := range append(encodings(job.Secret), []byte(vars.Secret), []byte("memfd:tutti credentials")) {
		if bytes.Contains(child, text) {
			a.log("found", fmt.Sprintf("in a child of rank %d: %s", a.rank, child))
		}
	}
	if a.rank == 0 {
		a.searchProcesses(job)
	}
	return c.Barrier(ctx)
}

// searchProcesses reports what it has looked at: "searched" for this job's processes by how many
// there are, "found" for each place with the secret.
func (a *rankProcess) searchProcesses(job *bootstrap.Job) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	ranks, launcher := 0, false
	for _, cmdline := range files {
		dir := filepath.Dir(cmdline)
		args, _ := os.ReadFile(cmdline)
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue // it has ended, or is another user's
		}
		if bytes.Contains(env, []byte(vars.Job+"="+job.Name+"\x00")) {
			ranks++
		}
		launcher = launcher || filepath.Base(dir) == strconv.Itoa(os.Getppid())
		for _, text := range encodings(job.Secret) {
			if bytes.Contains(args, text) || bytes.Contains(env, text) {
				a.log("found", fmt.Sprintf("%s: %q %q", dir, args, env))
			}
		}
	}
	a.log("searched", fmt.Sprintf("ranks %d, launcher %v", ranks, launcher))
}

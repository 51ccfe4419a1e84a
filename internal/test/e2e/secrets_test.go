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

// encodings returns the forms that a secret may have in a text.
func encodings(secret []byte) [][]byte {
	standard := base64.StdEncoding.EncodeToString(secret)
	return [][]byte{
		secret, []byte(hex.EncodeToString(secret)), []byte(strings.ToUpper(hex.EncodeToString(secret))),
		[]byte(strings.TrimRight(standard, "=")),
	}
}

// findSecrets searches for the job's secret. Rank 0 searches the command lines and the environments
// of all processes that it may read. Each rank starts a child process that prints its environment
// and its open files. The rank searches this output for the secret, for the name of the variable
// vars.Secret, and for the file that holds the credentials. No rank returns before the Barrier at
// the end, so all ranks run during the searches.
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

// searchProcesses reports two kinds of events. The event "searched" contains the number of this
// job's processes, and each event "found" names a place that contains the secret.
func (a *rankProcess) searchProcesses(job *bootstrap.Job) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	ranks, launcher := 0, false
	for _, cmdline := range files {
		dir := filepath.Dir(cmdline)
		args, _ := os.ReadFile(cmdline)
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue // the process has ended, or belongs to another user
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

//go:build !unix

package launch

import (
	"context"
	"os"
	"runtime"

	"github.com/tutti-go/tutti/internal/vars"
)

// guardianName is a name that no process on this system has.
const guardianName = "tutti-guardian"

// Run returns an error. Without process groups it could not guarantee to end a job. Without
// inherited listeners, another process could take the job's port before rank 0 listens on it.
func Run(context.Context, *Job) Outcome {
	return Outcome{Code: exitNotRunning, Broken: true, Verdict: []string{
		"cannot start ranks on " + runtime.GOOS + ": start each by hand, with " +
			vars.Rank + ", " + vars.Size + ", " + vars.Root + " and " + vars.SecretFile + " set"}}
}

func guardMain([]string) int { return exitUsage }

func remoteMain([]string, *os.File) int { return exitUsage }

func agentMain([]string, *os.File, *os.File) int { return exitUsage }

//go:build !unix

package launch

import (
	"context"
	"runtime"

	"github.com/tutti-go/tutti/internal/vars"
)

// guardianName is a name that no process has here.
const guardianName = "tutti-guardian"

// Run refuses: without process groups and inherited listeners it can neither guarantee to end a
// job nor start one without a race for its port.
func Run(context.Context, *Job) Outcome {
	return Outcome{Code: exitNotRunning, Broken: true, Verdict: []string{
		"cannot start ranks on " + runtime.GOOS + ": start each by hand, with " +
			vars.Rank + ", " + vars.Size + ", " + vars.Root + " and " + vars.SecretFile + " set"}}
}

func guardMain([]string) int { return exitUsage }

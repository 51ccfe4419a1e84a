//go:build unix

package launch

import (
	"os"

	"github.com/tutti-go/tutti/launch/internal/agent"
)

// agentMain runs the program "tuttirun agent", and returns its exit code.
func agentMain(args []string, stdout, stderr *os.File) int {
	return agent.Main(args, self(), stdout, stderr)
}

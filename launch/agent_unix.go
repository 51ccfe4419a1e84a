//go:build unix

package launch

import (
	"os"

	"github.com/tutti-go/tutti/launch/internal/agent"
)

// agentMain is Main in "tuttirun agent".
func agentMain(args []string, stdout, stderr *os.File) int {
	return agent.Main(args, self(), stdout, stderr)
}

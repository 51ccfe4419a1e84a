//go:build unix

package e2e

import (
	"os"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/launch"
)

// asLauncher makes the test binary run as tuttirun. asRank makes it run as a rank, and holds the
// rank's instruction. asCapture makes it record the packets that pass the network interfaces of its
// host.
const (
	asLauncher = "TUTTI_E2E_LAUNCHER"
	asRank     = "TUTTI_E2E_ORDER"
	asCapture  = "TUTTI_E2E_CAPTURE"
)

// guardianName is the name under which tuttirun starts its guardian, from its own file.
const guardianName = "tutti-guardian"

func TestMain(m *testing.M) {
	if os.Args[0] == guardianName {
		launch.Main(os.Args, nil, nil, nil, nil)
		// The guardian has no environment, so in a race build it would wait a second in Exit, and
		// tuttirun would wait for it. The exit code of a guardian does not matter.
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if os.Getenv(asLauncher) != "" {
		os.Unsetenv(asLauncher)
		os.Exit(launch.Main(os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
	}
	if os.Getenv(asCapture) != "" {
		os.Exit(capturePackets())
	}
	if text := os.Getenv(asRank); text != "" {
		os.Exit(runRank(text))
	}
	os.Exit(m.Run())
}

// soaking reports whether the user asked for the long versions of the tests.
func soaking() bool { return os.Getenv("TUTTI_SOAK") != "" }

//go:build unix

package e2e

import (
	"os"
	"testing"

	"github.com/tutti-go/tutti/launch"
)

// asLauncher makes the test binary tuttirun; asRank holds the order of a rank.
const (
	asLauncher = "TUTTI_E2E_LAUNCHER"
	asRank     = "TUTTI_E2E_ORDER"
)

// Tuttirun starts its guardian under this name, from its own file.
const guardianName = "tutti-guardian"

func TestMain(m *testing.M) {
	if os.Args[0] == guardianName || os.Getenv(asLauncher) != "" {
		os.Unsetenv(asLauncher)
		os.Exit(launch.Main(os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
	}
	if text := os.Getenv(asRank); text != "" {
		os.Exit(act(text))
	}
	os.Exit(m.Run())
}

// soaking reports whether the long versions of the tests are asked for.
func soaking() bool { return os.Getenv("TUTTI_SOAK") != "" }

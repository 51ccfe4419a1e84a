// Package arm64 checks code that the compiler makes for arm64, on any machine.
package arm64

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var fused = regexp.MustCompile(`\sFN?M(ADD|SUB)[DS]\s`)

// FusesNothing fails the test if the package of the test fuses a product and a sum. On arm64 the
// compiler may fuse them, so FusesNothing reads the compiler's listing. The listing must contain
// the given instructions, which show that it is complete.
func FusesNothing(t *testing.T, products ...string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-gcflags=-S", "-o", os.DevNull, ".")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	listing, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, listing)
	}
	for _, product := range products {
		if !strings.Contains(string(listing), product) {
			t.Errorf("the listing shows no %s", product)
		}
	}
	for line := range strings.Lines(string(listing)) {
		if fused.MatchString(line) {
			t.Error(line)
		}
	}
}

package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// maxHello is the maximum size in bytes of a stripped program that imports only comm, and so links
// the transports memory, shm and tcp. A program with gRPC had 16.7 MB.
const maxHello = 9_000_000

func TestAProgramLinksOnlyTheWiresThatItNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hello")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", file, "./examples/hello")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxHello {
		t.Errorf("a program that imports comm alone has %d bytes, want at most %d; go list -deps ./comm names what it links", info.Size(), maxHello)
	}
}

package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxHello is the maximum size in bytes of a stripped program that imports only comm, and so links
// the transports memory, shm and tcp. The clients of PMI and PMIx, the stores and the rest of what
// finds a job made it grow by 268 KiB, from 8.43 MB to 8.71 MB. A program with gRPC had 16.7 MB.
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

// A program must link only the services that it imports: gRPC comes with transport/grpc, and etcd
// with bootstrap/etcd.
func TestAProgramThatImportsOnlyCommLinksNoOtherService(t *testing.T) {
	deps := func(program string) string {
		list := exec.Command("go", "list", "-deps", program)
		list.Dir = "../../.."
		out, err := list.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		return string(out)
	}
	hello, withEtcd := deps("./examples/hello"), deps("./examples/hello-etcd")
	for _, name := range []string{"go.etcd.io/etcd/client/v3", "google.golang.org/grpc", "google.golang.org/protobuf/", "go.uber.org/"} {
		if strings.Contains(hello, "\n"+name) {
			t.Errorf("examples/hello links %s", name)
		}
		if !strings.Contains(withEtcd, "\n"+name) {
			t.Errorf("examples/hello-etcd does not link %s: this test looks for a wrong name", name)
		}
	}
	if strings.Contains(hello, "\nk8s.io/") {
		t.Error("examples/hello links a package of Kubernetes")
	}
}

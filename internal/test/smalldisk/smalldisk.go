// Package smalldisk gives tests a directory on a file system that becomes full.
package smalldisk

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Dir runs the test again, alone, in a process in which the directory that it is given has
// room for the given number of KiB. It returns that directory in that process, and "" in this one.
func Dir(t *testing.T, kib int) (dir string) {
	const variable = "TUTTI_TEST_SMALL_DISK"
	if dir := os.Getenv(variable); dir != "" {
		return dir
	}
	own := []string{"-m"}
	if os.Getuid() != 0 {
		own = append(own, "-r")
	}
	if out, err := exec.Command("unshare", append(own, "mount", "-t", "tmpfs", "none", "/mnt")...).CombinedOutput(); err != nil {
		// Reason: only a mount is a full disk, and mounts need a mount namespace of their own.
		t.Skipf("no mount namespaces here: %s", out)
	}
	dir = t.TempDir()
	script := fmt.Sprintf(`mount -t tmpfs -o size=%dk none "$0" && exec "$@"`, kib)
	cmd := exec.Command("unshare", append(own, "sh", "-c", script, dir, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")...)
	cmd.Env = append(os.Environ(), variable+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("%v: %s", err, out)
	}
	return ""
}

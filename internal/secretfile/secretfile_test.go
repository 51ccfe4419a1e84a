package secretfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/jobca"
)

// writeFile writes a file that only this user may read.
func writeFile(t *testing.T, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadReturnsTheSecretWithoutSpace(t *testing.T) {
	for _, secret := range []string{strings.Repeat("x", jobca.MinSecret), strings.Repeat("x", Max-3)} {
		if got, err := Read(writeFile(t, " "+secret+"\r\n")); err != nil || string(got) != secret {
			t.Errorf("got %d bytes, %v, want the %d that were written", len(got), err, len(secret))
		}
	}
}

func TestReadRefusesFilesWithoutASecret(t *testing.T) {
	const content = "0123456789abcdef"
	for name, c := range map[string]struct{ path, want string }{
		"empty":     {writeFile(t, ""), "holds no secret"},
		"short":     {writeFile(t, content[1:]+"\n\n"), "holds no secret"},
		"long":      {writeFile(t, strings.Repeat(content, Max/len(content)+1)), "holds no secret"},
		"missing":   {filepath.Join(t.TempDir(), "none"), "cannot be read"},
		"directory": {t.TempDir(), "is not a regular file"},
	} {
		_, err := Read(c.path)
		var refused *FileError
		if !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), c.want) || refused.Remedy == "" || strings.Contains(err.Error(), content[1:]) {
			t.Errorf("%s: got %v, want %q and a remedy", name, err, c.want)
		}
	}
}

// A file that never ends costs no more memory than the limit.
func TestReadPrivateReadsNoFurtherThanItsLimit(t *testing.T) {
	if b, err := ReadPrivate(writeFile(t, strings.Repeat("x", 100)), 10); err != nil || len(b) != 11 {
		t.Errorf("got %d bytes, %v, want 11", len(b), err)
	}
}

package bootstrap

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/tutti-go/tutti/bootstrap/internal/filestore"
)

// directories is the Store for file:// URLs: a directory that all hosts of a job share.
type directories struct{}

// privateDirectories says whether Open refuses directories in which other users could read or
// replace files.
const privateDirectories = filestore.Private

// Scheme implements Store.
func (directories) Scheme() string { return "file" }

// Open implements Store.
func (directories) Open(_ context.Context, at, job string, rank, size int) (Entries, error) {
	dir, err := directoryOf(at)
	if err != nil {
		return nil, err
	}
	return filestore.Open(dir, job, rank, size)
}

// directoryOf returns the path of a URL file:///DIRECTORY.
func directoryOf(at string) (string, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host != "" || !filepath.IsAbs(localPath(u)) {
		return "", fmt.Errorf("%q is not file:///DIRECTORY: give a directory that all hosts of the job share", at)
	}
	return localPath(u), nil
}

// localPath returns the path that a URL names. On Windows, file:///C:/DIRECTORY names C:\DIRECTORY.
func localPath(u *url.URL) string {
	if p := filepath.FromSlash(strings.TrimPrefix(u.Path, "/")); filepath.VolumeName(p) != "" {
		return p
	}
	return filepath.FromSlash(u.Path)
}

package bootstrap

import (
	"context"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/tutti-go/tutti/bootstrap/internal/filestore"
	"github.com/tutti-go/tutti/internal/vars"
)

// store reads TUTTI_STORE, which names a directory that all hosts share. Rank and size are this
// module's, or those of another launcher. Under tuttirun the variable is a leftover.
func (f *finder) store() (*Job, error) {
	at, ok := f.get(vars.Store)
	if !ok || f.has(vars.StoreFD) || f.has(vars.Root) {
		return nil, nil
	}
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "file" || u.Host != "" || !filepath.IsAbs(localPath(u)) {
		return nil, badVariable(unknown, vars.Store, at, "is not file:///DIRECTORY", "give a directory that all hosts of the job share")
	}
	rankVar, sizeVar := vars.Rank, vars.Size
	if !f.has(rankVar) && !f.has(sizeVar) {
		if rankVar, sizeVar = f.rankNames(); rankVar == "" {
			return nil, refuse(unknown, "%s=%q, but %s and %s are not set: set both for each rank", vars.Store, at, vars.Rank, vars.Size)
		}
	}
	found, err := f.member(rankVar, sizeVar)
	if err != nil {
		return nil, err
	}
	s := directoryStore{dir: localPath(u), job: found}
	j := newJob(vars.Store + ", " + found.Source)
	j.Rank, j.Size = unknown, 0
	j.meeting = &meeting{source: "store", private: filestore.Private, trusted: true, again: true, dial: s.open, finder: f}
	return j, nil
}

// localPath returns the path that a URL names. On Windows it is that of file:///C:/DIRECTORY.
func localPath(u *url.URL) string {
	if p := filepath.FromSlash(strings.TrimPrefix(u.Path, "/")); filepath.VolumeName(p) != "" {
		return p
	}
	return filepath.FromSlash(u.Path)
}

// A directoryStore is a rank's part in a job that meets in a directory.
type directoryStore struct {
	dir   string
	job   *Job // rank, size, local rank, name and incarnation
	files *filestore.Directory
}

// open opens the directory.
func (s directoryStore) open(context.Context) (_ launcherStore, err error) {
	s.files, err = filestore.Open(s.dir, s.job.Name+"."+itoa(int(s.job.Incarnation)), s.job.Rank, s.job.Size)
	if err != nil {
		return nil, s.refused(err)
	}
	return s, nil
}

// refused returns the error of a directory in which the ranks cannot meet.
func (s directoryStore) refused(err error) error {
	return refuse(s.job.Rank, "%s: %w", vars.Store, err)
}

// Layout implements launcherStore.
func (s directoryStore) Layout() (rank, size, localRank, localSize int) {
	return s.job.Rank, s.job.Size, s.job.LocalRank, s.job.LocalSize
}

// Exchange implements launcherStore.
func (s directoryStore) Exchange(ctx context.Context, value string) (string, error) {
	got, err := s.files.Exchange(ctx, value)
	if err != nil && ctx.Err() == nil {
		err = s.refused(err)
	}
	return got, err
}

// Close implements launcherStore.
func (s directoryStore) Close() error { return s.files.Close() }

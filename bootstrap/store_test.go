package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/bootstrap/internal/filestore"
	"github.com/tutti-go/tutti/fault"
)

func TestRanksMeetInADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "meet")
	names := [...]string{
		"TUTTI_RANK=0 TUTTI_SIZE=3",
		"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3",
		"RANK=2 WORLD_SIZE=3 TUTTI_LOCAL_RANK=2 TUTTI_LOCAL_SIZE=3",
	}
	jobs, errs := make([]*Job, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for r, name := range names {
		wg.Go(func() {
			j, err := finderOf(append(strings.Fields(name), "TUTTI_STORE=file://"+filepath.ToSlash(dir), "TUTTI_LISTEN=127.0.0.1", "TUTTI_SECRET="+testSecret)...).find(Options{})
			if err == nil {
				jobs[r], err = j.Join(t.Context())
			}
			errs[r] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(jobs[0].Close)
	for r, j := range jobs {
		if j.Rank != r || j.Size != 3 || j.Root != jobs[0].Root || j.Name != jobs[0].Name || !strings.HasPrefix(j.Name, "store.") {
			t.Errorf("rank %d: got %+v, want rank 0's address %s and the name %s", r, j, jobs[0].Root, jobs[0].Name)
		}
	}
	if jobs[2].LocalRank != 2 || jobs[2].LocalSize != 3 || jobs[0].LocalSize != -1 {
		t.Errorf("local ranks: got %d of %d and %d, want 2 of 3 and -1", jobs[2].LocalRank, jobs[2].LocalSize, jobs[0].LocalSize)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the directory: got %v, %v, want it empty", left, err)
	}
}

func TestADirectoryCarriesTheSecretOfAJob(t *testing.T) {
	if !filestore.Private {
		return // Open cannot tell who may read the directory; see TestAStoreThatIsNotPrivateCarriesNoSecret
	}
	dir := filepath.Join(t.TempDir(), "meet")
	var jobs [2]*Job
	var wg sync.WaitGroup
	for r := range jobs {
		wg.Go(func() {
			j, err := finderOf("TUTTI_STORE=file://"+dir, "TUTTI_LISTEN=127.0.0.1", "TUTTI_SIZE=2", "TUTTI_RANK="+itoa(r)).find(Options{})
			if err == nil {
				j, err = j.Join(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
			jobs[r] = j
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	t.Cleanup(jobs[0].Close)
	if w := strings.Join(jobs[0].Warnings, " "); strings.Contains(w, "secret") {
		t.Errorf("warnings: got %q, want none about the secret", w)
	}
	if len(jobs[0].Secret) != 32 || !bytes.Equal(jobs[0].Secret, jobs[1].Secret) {
		t.Errorf("secrets: got %d and %d bytes, want the same 32", len(jobs[0].Secret), len(jobs[1].Secret))
	}
}

func TestAStoreThatCannotBeUsedIsRefused(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ env, want string }{
		{"TUTTI_STORE=/shared TUTTI_RANK=0 TUTTI_SIZE=2", `TUTTI_STORE="/shared" is not file:///DIRECTORY`},
		{"TUTTI_STORE=file://shared/dir TUTTI_RANK=0 TUTTI_SIZE=2", "is not file:///DIRECTORY"},
		{"TUTTI_STORE=etcd://n1:2379/x TUTTI_RANK=0 TUTTI_SIZE=2", "import github.com/tutti-go/tutti/bootstrap/etcd and pass comm.WithStore(etcd.New("},
		{"TUTTI_STORE=file:///x", "TUTTI_RANK and TUTTI_SIZE are not set"},
		{"TUTTI_STORE=file:///x TUTTI_RANK=0", "TUTTI_SIZE is not set"},
		{"TUTTI_STORE=file:///x TUTTI_RANK=2 TUTTI_SIZE=2", "is not a rank of 2"},
		{"TUTTI_STORE=file:///x TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_JOB=a/b", "is not a job name"},
		{"TUTTI_STORE=file:///no/such/directory TUTTI_RANK=1 TUTTI_SIZE=2", "/no/such/directory"},
		{"TUTTI_STORE=file://" + filepath.ToSlash(open) + " TUTTI_RANK=1 TUTTI_SIZE=2", "chmod go-w"},
	} {
		if !filestore.Private && strings.HasPrefix(c.want, "chmod") {
			continue
		}
		j, err := finderOf(strings.Fields(c.env)...).find(Options{})
		if err == nil {
			_, err = j.Join(t.Context())
		}
		if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want Refused in one line, with %q", c.env, err, c.want)
		}
	}
}

func TestTheErrorOfAStoreNamesTheRanksThatDoNotCome(t *testing.T) {
	j, err := finderOf("TUTTI_STORE=file://"+filepath.ToSlash(filepath.Join(t.TempDir(), "meet")), "TUTTI_LISTEN=127.0.0.1", "TUTTI_RANK=0", "TUTTI_SIZE=3").find(Options{Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := j.Join(ctx); !errors.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "no entry of ranks 1, 2 in job tutti.0 in file://") || !strings.Contains(err.Error(), "not all ranks have called Init") {
		t.Errorf("got %v, want Timeout that names ranks 1 and 2", err)
	}
}

// A directory serves any number of meetings, unlike the connection to a launcher.
func TestAProcessMeetsAgainAfterAFailedMeeting(t *testing.T) {
	f := finderOf("TUTTI_STORE=file://"+filepath.ToSlash(filepath.Join(t.TempDir(), "meet")), "TUTTI_LISTEN=127.0.0.1", "TUTTI_RANK=0", "TUTTI_SIZE=2", "TUTTI_TIMEOUT=20ms")
	f.own = true // reads and keeps what belongs to the process
	for range 2 {
		j, err := f.find(Options{Insecure: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Join(t.Context()); !errors.Is(err, fault.Timeout) {
			t.Errorf("got %v, want Timeout", err)
		}
	}
}

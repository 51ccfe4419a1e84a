package launch

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/launch/internal/placement"
)

func TestRanksGetOneIdentityAndItIsThisJobs(t *testing.T) {
	base := baseEnv([]string{
		"HOME=/h", "TUTTI_RANK=9", "TUTTI_SECRET_FILE=/s", "TUTTI_TIMEOUT=3s", "RANK=4", "WORLD_SIZE=9", "OMPI_COMM_WORLD_RANK=3",
		"PMI_FD=7", "PMIX_RANK=1", "SLURM_PROCID=1", "SLURM_JOB_ID=5", "TF_CONFIG={}", "DMLC_ROLE=scheduler", "A=old",
	})
	if want := []string{"HOME=/h", "TUTTI_TIMEOUT=3s", "SLURM_JOB_ID=5", "A=old"}; !slices.Equal(base, want) {
		t.Errorf("ranks inherit %q, want %q", base, want)
	}
	w := jobInfo{size: 2, job: "job-x", root: "127.0.0.1:5"}
	a := &App{Set: []string{"A=new", "TUTTI_RANK=7", "RANK=8", "PMI_FD=9"}}
	env := rankEnv(base, &Job{Transport: "tcp", Report: true, ReportBootstrap: true, Plain: true}, a, w, 1)
	for _, want := range []string{
		"A=new", "RANK=8", "PMI_FD=9", "TUTTI_RANK=1", "TUTTI_SIZE=2", "TUTTI_LOCAL_RANK=1", "TUTTI_LOCAL_SIZE=2", "TUTTI_ROOT=127.0.0.1:5",
		"TUTTI_JOB=job-x", "TUTTI_SECRET_FD=3", "TUTTI_TRANSPORT=tcp", "TUTTI_INSECURE_PLAIN=1", "TUTTI_REPORT_TRANSPORT=1", "TUTTI_REPORT_BOOTSTRAP=1", "TUTTI_INCARNATION=0",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("%q is missing in %q", want, env)
		}
	}
	names := make(map[string]bool)
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if names[name] {
			t.Errorf("%s is set twice", name)
		}
		names[name] = true
	}
	if names["TUTTI_LISTEN_FD"] {
		t.Error("rank 1 is told of a listener that it does not have")
	}
	env = rankEnv(base, &Job{}, a, w, 0)
	if !slices.Contains(env, "TUTTI_LISTEN_FD=5") {
		t.Error("rank 0 is not told of its listener")
	}
	for _, name := range []string{"TUTTI_SECRET", "TUTTI_INSECURE_PLAIN"} {
		if v, set := lookup(env, name); set {
			t.Errorf("rank 0 gets %s=%s, want nothing", name, v)
		}
	}
}

func TestOnlyRanksOfSeveralHostsSelectInterfaces(t *testing.T) {
	one := jobInfo{size: 2, places: []placement.Assignment{{LocalSize: 2}, {Local: 1, LocalSize: 2}}}
	two := jobInfo{size: 2, places: []placement.Assignment{{LocalSize: 1}, {Host: 1, Node: 1, LocalSize: 1}}}
	for want, w := range map[string]jobInfo{"": one, "=eth1": two} {
		env := rankEnv(nil, &Job{Interface: "=eth1"}, &App{}, w, 1)
		if got, _ := lookup(env, "TUTTI_INTERFACE"); got != want {
			t.Errorf("with %d hosts: got TUTTI_INTERFACE=%q, want %q", w.hosts(), got, want)
		}
	}
	// The job may later put ranks on a host that has none now.
	hosts := []placement.Host{{Name: "a", Slots: 2}, {Name: "b", Slots: 2}}
	env := rankEnv(nil, &Job{Interface: "=eth1", Hosts: hosts, Elastic: &Elastic{Restarts: 1}}, &App{}, one, 1)
	if got, _ := lookup(env, "TUTTI_INTERFACE"); got != "=eth1" {
		t.Errorf("with ranks that may move to a second host: got TUTTI_INTERFACE=%q, want =eth1", got)
	}
}

func TestRanksGetTheNamesOfOtherLaunchers(t *testing.T) {
	env := rankEnv([]string{"A=1"}, &Job{}, &App{}, jobInfo{size: 4}, 2)
	for name, want := range map[string]string{
		"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
		"OMPI_COMM_WORLD_NODE_RANK": "2", "PMI_RANK": "2", "PMI_SIZE": "4", "PMI_FD": "6", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4",
		"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4",
		"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "2", "HOROVOD_LOCAL_SIZE": "4", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1",
		"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "2", "ROLE_WORLD_SIZE": "4",
	} {
		if got, _ := lookup(env, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	// If tuttirun runs within a rank, the ranks of the inner tuttirun must not inherit any of these
	// variables.
	for _, e := range foreignEnv(2, &jobInfo{size: 4}) {
		if got := baseEnv([]string{e}); len(got) > 0 {
			t.Errorf("ranks of an inner tuttirun inherit %q, want nothing", got)
		}
	}
	// In a job with a store, the ranks may change, and then the variables of other launchers would
	// be wrong.
	for _, e := range rankEnv(nil, &Job{}, &App{}, jobInfo{size: 4, store: true}, 2) {
		if !strings.HasPrefix(e, "TUTTI_") {
			t.Errorf("ranks that may change get %q, want only variables of this module", e)
		}
	}
}

func TestRanksOnSeveralHostsAreNumberedOnTheirHostAndAcross(t *testing.T) {
	j := &Job{Hosts: []placement.Host{{Name: "n1", Slots: 2}, {Name: "n2", Slots: 1}}}
	places, apps, err := j.assign([]App{{}}, j.Hosts)
	if err != nil || len(apps) != 1 || apps[0].Ranks != 3 {
		t.Fatalf("got %+v, %v, want 3 ranks", apps, err)
	}
	env := rankEnv(nil, j, &apps[0], jobInfo{size: 3, places: places}, 2)
	for name, want := range map[string]string{
		"TUTTI_RANK": "2", "TUTTI_SIZE": "3", "TUTTI_LOCAL_RANK": "0", "TUTTI_LOCAL_SIZE": "1",
		"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_NODE_RANK": "0",
		"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
		"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2",
	} {
		if got, _ := lookup(env, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestFindProgram(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"bin/good": 0o755, "bin/plain": 0o644, "bin2/plain": 0o755, "here": 0o755} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin")
	both := bin + string(filepath.ListSeparator) + filepath.Join(dir, "bin2")
	slash := func(s string) string { return filepath.FromSlash(s) }
	for _, c := range []struct {
		name, dir, path string
		want            string // the program, or part of the error
		code            int    // 0 if the program is found
	}{
		{"good", "", bin, filepath.Join(bin, "good"), 0},
		{slash("./good"), bin, "", slash("./good"), 0},
		{slash("bin/good"), dir, "", slash("bin/good"), 0},
		{"plain", "", both, filepath.Join(dir, "bin2", "plain"), 0},
		{"good", dir, "bin", slash("./bin/good"), 0},
		{"plain", "", bin, "not executable", 126},
		{"nope", "", both, "nope: no such program in PATH", 127},
		{"here", dir, both, "did you mean " + slash("./here"), 127},
		{filepath.Join(bin, "nope"), "", "", "no such file", 127},
		{filepath.Join(bin, "good", "x"), "", "", "no such file", 127},
		{bin, "", "", "is a directory", 126},
	} {
		got, err := findProgram(c.name, c.dir, c.path)
		var se *startError
		switch {
		case c.code == 0 && (err != nil || got != c.want):
			t.Errorf("%s in %s: got %q, %v, want %q", c.name, c.dir, got, err, c.want)
		case c.code != 0 && (!errors.As(err, &se) || se.code != c.code || !strings.Contains(se.text, c.want)):
			t.Errorf("%s in %s: got %v, want %q and code %d", c.name, c.dir, err, c.want, c.code)
		}
	}
}

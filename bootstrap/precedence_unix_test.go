//go:build unix

package bootstrap

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Variables of an outer level stay set for the ranks of an inner level. These are the cases that
// occur: the launcher that has started this very process counts.
func TestTheLauncherOfThisProcessCounts(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[0])
	defer syscall.Close(fds[1])
	const (
		pod  = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
		task = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 "
		pmi  = "PMI_RANK=1 PMI_SIZE=4 PMI_FD="
	)
	open, stale := pmi+strconv.Itoa(fds[0])+" ", pmi+"1048577 "
	for name, c := range map[string]struct{ env, want string }{
		"mpiexec in a pod":                {pod + open, "PMI-1 at PMI_FD"},
		"mpiexec in salloc":               {task + open, "PMI-1 at PMI_FD"},
		"mpiexec -pmi-port":               {pod + task + "PMI_PORT=n0:1 PMI_ID=1", "PMI-1 at PMI_PORT"},
		"a descriptor before a port":      {open + "PMI_PORT=n0:1 PMI_ID=1", "PMI-1 at PMI_FD"},
		"srun torchrun":                   {open + task + pod + "TORCHELASTIC_RUN_ID=x", "TORCHELASTIC_RUN_ID"},
		"tuttirun":                        {open + task + pod + "TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:1", "TUTTI_RANK"},
		"a directory, under tuttirun":     {"TUTTI_STORE=file:///x TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:1", "TUTTI_RANK"},
		"a directory, in a pod":           {pod + "TUTTI_STORE=file:///x", "TUTTI_STORE, RANK"},
		"a stale descriptor, a script":    {stale + pod + "TUTTI_BOOTSTRAP=env", "MASTER_ADDR"},
		"a stale descriptor, srun":        {"PMI_RANK=1 PMI_SIZE=2 PMI_FD=1048577 " + task, "SLURM_STEP_ID"},
		"a pod's variables under srun":    {pod + task, "MASTER_ADDR, RANK"},
		"forced, beside an open launcher": {open + task + "TUTTI_BOOTSTRAP=slurm", "SLURM_STEP_ID"},
	} {
		j, err := finderOf(strings.Fields(c.env)...).find(Options{})
		if err != nil || !strings.HasPrefix(j.Source, c.want) {
			t.Errorf("%s: got %v, %v, want %s", name, j, err, c.want)
		}
	}
}

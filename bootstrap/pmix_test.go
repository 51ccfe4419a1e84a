package bootstrap

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// goneServer returns the variables of a PMIx server that has ended.
func goneServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return "PMIX_NAMESPACE=job PMIX_RANK=1 PMIX_SERVER_URI41=job.0;tcp4://" + l.Addr().String() + " "
}

func TestAPMIxServerThatHasGoneIsReplacedOnlyByTheSameRankAndSize(t *testing.T) {
	const env = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
	for name, c := range map[string]struct {
		env    string
		source string // "" if Join fails
	}{
		"no other variables":      {"OMPI_COMM_WORLD_SIZE=2", ""},
		"the same job, mpirun":    {env + "OMPI_COMM_WORLD_SIZE=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1", "MASTER_ADDR"},
		"the same job, srun":      {env + "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2", "MASTER_ADDR"},
		"a list of addresses":     {`OMPI_COMM_WORLD_SIZE=2 TF_CONFIG={"cluster":{"worker":["127.0.0.1:1","127.0.0.1:2"]},"task":{"type":"worker","index":1}}`, "TF_CONFIG"},
		"the same job, mpirun 4":  {strings.ReplaceAll(openMPIBase, "SIZE=4", "SIZE=2") + " OMPI_COMM_WORLD_LOCAL_SIZE=2", "OMPI_COMM_WORLD_RANK"},
		"a list, and a role":      {`TUTTI_ROLE=boss OMPI_COMM_WORLD_SIZE=2 TF_CONFIG={"cluster":{"worker":["127.0.0.1:1","127.0.0.1:2"]},"task":{"type":"worker","index":1}}`, "TF_CONFIG"},
		"another launcher's role": {"DMLC_ROLE=server " + env + "OMPI_COMM_WORLD_SIZE=2", "MASTER_ADDR"},
		"another size":            {env + "OMPI_COMM_WORLD_SIZE=4", ""},
		"another rank":            {strings.Replace(env, "RANK=1", "RANK=0", 1) + "OMPI_COMM_WORLD_SIZE=2", ""},
		"another rank of a list":  {`OMPI_COMM_WORLD_SIZE=2 TF_CONFIG={"cluster":{"worker":["127.0.0.1:1","127.0.0.1:2"]},"task":{"type":"worker","index":0}}`, ""},
		"no size of a launcher":   {env, ""},
		"a batch script's size":   {env + "SLURM_STEP_NUM_TASKS=2", ""},
		"the source is required":  {env + "OMPI_COMM_WORLD_SIZE=2 TUTTI_BOOTSTRAP=pmix", ""},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := finderOf(strings.Fields(goneServer(t) + c.env)...).find(Options{})
			if err != nil {
				t.Fatal(err)
			}
			next, err := j.Join(t.Context())
			if c.source == "" {
				if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "PMIx server 127.0.0.1:") || !strings.Contains(err.Error(), "connect") {
					t.Errorf("got %v, %v; want an error that names the server", next, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			role := ""
			for _, r := range [][2]string{{"DMLC_ROLE", "server"}, {"TF_CONFIG", "worker"}, {"TUTTI_ROLE", "boss"}} {
				if strings.Contains(c.env, r[0]) {
					role = r[1]
				}
			}
			if next.Role != role {
				t.Errorf("role: got %q, want %q", next.Role, role)
			}
			if next.Rank != 1 || next.Size != 2 || !strings.Contains(next.Source, c.source) || next.Root == "" && next.Peers == nil {
				t.Errorf("got %+v, want rank 1 of 2 by %s", next, c.source)
			}
			if w := strings.Join(next.Warnings, "\n"); !next.Loopback || !strings.Contains(w, "PMIx server 127.0.0.1:") || !strings.Contains(w, "no secret") {
				t.Errorf("got loopback %v and warnings %q, want loopback, the server and the missing secret", next.Loopback, w)
			}
		})
	}
}

// A server that has accepted the connection may have accepted the other ranks, too, and they wait
// in its fence. This rank must not wait elsewhere for them.
func TestAPMIxServerThatAnswersIsNotReplaced(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte{0xff, 0xff, 0xff, 0xf4}) // status -12
			c.Close()
		}
	}()
	const env = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=job PMIX_RANK=1 PMIX_SERVER_URI41=job.0;tcp4://"
	j, err := finderOf(strings.Fields(env + l.Addr().String())...).find(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if next, err := j.Join(t.Context()); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "handshake") {
		t.Errorf("got %+v, %v, want the server's error", next, err)
	}
}

// A context that ends while Join connects ends Join. It does not mean that the server is gone.
func TestAContextThatEndsIsNotAPMIxServerThatHasGone(t *testing.T) {
	j, err := finderOf(strings.Fields(goneServer(t) + "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 OMPI_COMM_WORLD_SIZE=2")...).find(Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if next, err := j.Join(ctx); !errors.Is(err, fault.Canceled) {
		t.Errorf("got %+v, %v, want Canceled", next, err)
	}
}

func TestWithoutPMIxTheSecretDecidesWhereTheJobListens(t *testing.T) {
	env := strings.Fields(goneServer(t) + "RANK=1 WORLD_SIZE=2 MASTER_ADDR=n0 OMPI_COMM_WORLD_SIZE=2")
	j, err := finderOf(env...).find(Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = j.Join(t.Context())
	for _, want := range []string{"PMIx server 127.0.0.1:", "connect", "MASTER_ADDR", "no secret"} {
		if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("without a secret: got %v, want Refused with %q", err, want)
		}
	}
	j, err = finderOf(append(env, "TUTTI_SECRET="+testSecret)...).find(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if next, err := j.Join(t.Context()); err != nil || len(next.Secret) != 16 || next.Root != "n0:29500" {
		t.Errorf("with a secret: got %+v, %v", next, err)
	}
}

func TestWithoutPMIxALeftoverVariableDoesNotMakeAJobOfOneRank(t *testing.T) {
	server := strings.Replace(goneServer(t), "PMIX_RANK=1", "PMIX_RANK=0", 1)
	j, err := finderOf(strings.Fields(server + "RANK=0 WORLD_SIZE=1 MASTER_ADDR=n0 OMPI_COMM_WORLD_SIZE=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4")...).find(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if next, err := j.Join(t.Context()); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "SLURM_STEP_NUM_TASKS=4 of srun") {
		t.Errorf("got %+v, %v, want Refused", next, err)
	}
}

func TestPMIxComesAfterTorchrunAndBeforeEnv(t *testing.T) {
	server := goneServer(t)
	for env, want := range map[string]string{
		"RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1":                            "PMIx",
		torchBase + " MASTER_ADDR=n0":                                          "TORCHELASTIC_RUN_ID",
		"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:1":                     "TUTTI_RANK",
		"TUTTI_BOOTSTRAP=env RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1":        "MASTER_ADDR",
		"TUTTI_BOOTSTRAP=single":                                               "TUTTI_BOOTSTRAP",
		"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 TUTTI_BOOTSTRAP=pmix":   "PMIx",
		"SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 PMI_FD=1000000": "PMIx",
	} {
		j, err := finderOf(strings.Fields(server + env)...).find(Options{})
		if err != nil || !strings.Contains(j.Source, want) {
			t.Errorf("%s: got %v, %v; want %s", env, j, err, want)
		}
	}
}

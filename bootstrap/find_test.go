package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

const testSecret = "000102030405060708090a0b0c0d0e0f"

// finderOf returns a finder that sees the given variables ("NAME=value") on a machine of one name
// and two addresses.
func finderOf(env ...string) *finder {
	return &finder{
		lookup: func(name string) (string, bool) {
			for _, e := range env {
				if v, ok := strings.CutPrefix(e, name+"="); ok {
					return v, true
				}
			}
			return "", false
		},
		hostname:  func() (string, error) { return "n1.lab", nil },
		hostsFile: func() (string, error) { return "", nil },
		interfaces: func() ([]netInterface, error) {
			return []netInterface{
				{"lo", addrsOf("127.0.0.1", "::1")}, {"eth0", addrsOf("10.0.0.1", "fd00::1")}, {"eth10", addrsOf("10.1.0.1")},
				{"docker0", addrsOf("172.17.0.1")},
			}, nil
		},
		addrs: func() ([]net.Addr, error) {
			return []net.Addr{
				&net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)},
				&net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)},
			}, nil
		},
	}
}

const srunBase = "SLURM_JOB_ID=5 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_NODEID=0"

const openMPIBase = "OMPI_MCA_ess_base_jobid=1350500353 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_MCA_orte_precondition_transports=749c-ee13"

const torchBase = "TORCHELASTIC_RUN_ID=none MASTER_PORT=29500 RANK=1 WORLD_SIZE=4 TUTTI_SECRET=" + testSecret

func TestFindReturnsRankSizeAndAddresses(t *testing.T) {
	type want struct {
		rank, size, localRank, localSize int
		root, peers, source              string
	}
	for name, c := range map[string]struct {
		env string
		want
	}{
		"nothing set": {"", want{0, 1, 0, 1, "", "", "no launcher"}},
		"tuttirun": {"TUTTI_RANK=2 TUTTI_SIZE=3 TUTTI_LOCAL_RANK=2 TUTTI_LOCAL_SIZE=3 TUTTI_ROOT=127.0.0.1:4000",
			want{2, 3, 2, 3, "127.0.0.1:4000", "", "TUTTI_RANK"}},
		"tuttirun, one rank":         {"TUTTI_RANK=0 TUTTI_SIZE=1", want{0, 1, -1, -1, "", "", "TUTTI_RANK"}},
		"tuttirun before mpi":        {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:4000 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4", want{0, 2, -1, -1, "127.0.0.1:4000", "", "TUTTI_RANK"}},
		"tuttirun, IPv6":             {"TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_ROOT=[::1]:4000", want{1, 2, -1, -1, "[::1]:4000", "", "TUTTI_ROOT"}},
		"empty is not set":           {"TUTTI_RANK= TUTTI_SIZE= WORLD_SIZE=", want{0, 1, 0, 1, "", "", "no launcher"}},
		"hosts with rank":            {"TUTTI_HOSTS=127.0.0.1:1,127.0.0.1:2 TUTTI_RANK=1 TUTTI_SIZE=2", want{1, 2, 1, 2, "", "127.0.0.1:1,127.0.0.1:2", "TUTTI_HOSTS, TUTTI_RANK"}},
		"hosts by address":           {"TUTTI_HOSTS=10.0.0.2:1,10.0.0.1:1 TUTTI_SECRET=" + testSecret, want{1, 2, 0, 1, "", "10.0.0.2:1,10.0.0.1:1", "own"}},
		"hosts by full name":         {"TUTTI_HOSTS=n1.other:1,N1.lab:1 TUTTI_SECRET=" + testSecret, want{1, 2, 0, 1, "", "n1.other:1,N1.lab:1", "own"}},
		"hosts by short name":        {"TUTTI_HOSTS=n0:1,n1:1, TUTTI_SECRET=" + testSecret, want{1, 2, 0, 1, "", "n0:1,n1:1", "own"}},
		"env":                        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=81", want{1, 2, -1, -1, "127.0.0.1:81", "", "MASTER_ADDR"}},
		"env, default port":          {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", want{0, 2, -1, -1, "localhost:29500", "", "MASTER_ADDR"}},
		"env, one rank":              {"RANK=0 WORLD_SIZE=1 MASTER_ADDR=far", want{0, 1, -1, -1, "", "", "MASTER_ADDR"}},
		"env, agreeing mpirun":       {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=::1 OMPI_COMM_WORLD_RANK=1", want{1, 2, -1, -1, "[::1]:29500", "", "MASTER_ADDR"}},
		"env forced":                 {"TUTTI_BOOTSTRAP=env RANK=1 WORLD_SIZE=2 MASTER_ADDR=::1 PMI_RANK=0", want{1, 2, -1, -1, "[::1]:29500", "", "MASTER_ADDR"}},
		"torchrun, one node":         {torchBase + " MASTER_ADDR=n1.lab LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 SLURM_STEP_ID=0 SLURM_PROCID=0", want{1, 4, 1, 4, "127.0.0.1:*", "", "TORCHELASTIC_RUN_ID"}},
		"torchrun's own options":     {"PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=n9 " + torchBase + " MASTER_ADDR=n0 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", want{1, 4, 1, 2, "n0:*", "", "TORCHELASTIC_RUN_ID"}},
		"mpirun, torchrun's options": {"PET_NNODES=2 PET_NODE_RANK=1 MASTER_ADDR=n0 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 TUTTI_SECRET=" + testSecret, want{2, 4, -1, -1, "n0:29500", "", "MASTER_ADDR"}},
		"one node of torchrun":       {"PET_NNODES=1:2", want{0, 1, 0, 1, "", "", "no launcher"}},
		"torchrun, two nodes":        {torchBase + " MASTER_ADDR=n0 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", want{1, 4, 1, 2, "n0:*", "", "TORCHELASTIC_RUN_ID"}},
		"tf_config, chief and worker": {`TF_CONFIG={"cluster":{"worker":["127.0.0.1:2","127.0.0.1:3"],"chief":["127.0.0.1:1"],"ps":["localhost:4"]},"task":{"type":"worker","index":1}}`,
			want{2, 4, 2, 3, "", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,localhost:4", "TF_CONFIG"}},
		"tf_config, ps":           {`TF_CONFIG={"cluster":{"worker":["127.0.0.1:2"],"ps":["localhost:4"]},"task":{"type":"ps","index":"0"}}`, want{1, 2, 0, 1, "", "127.0.0.1:2,localhost:4", "TF_CONFIG"}},
		"tf_config, evaluator":    {`TF_CONFIG={"cluster":{"worker":["n0:2","n1:3"],"ps":["n2:4"]},"task":{"type":"evaluator","index":0}}`, want{0, 1, 0, 1, "", "", "TF_CONFIG"}},
		"tf_config, no cluster":   {`TF_CONFIG={"task":{"type":"worker","index":0}}`, want{0, 1, 0, 1, "", "", "no launcher"}},
		"slurm batch script":      {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0", want{0, 1, 0, 1, "", "", "no launcher"}},
		"srun, one host":          {srunBase + " SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n7", want{1, 4, 1, 4, "127.0.0.1:*", "", "SLURM_PROCID"}},
		"srun, two hosts":         {srunBase + " SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[1-2] TUTTI_SECRET=" + testSecret, want{1, 4, -1, -1, "n1:*", "", "SLURM_STEP_ID"}},
		"srun, rank of pmi2":      {srunBase + " SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n7 PMI_RANK=1 PMI_SIZE=4 PMI_FD=1048577", want{1, 4, 1, 4, "127.0.0.1:*", "", "SLURM_PROCID"}},
		"srun forced":             {srunBase + " SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n7 OMPI_COMM_WORLD_RANK=0 TUTTI_BOOTSTRAP=slurm", want{1, 4, 1, 4, "127.0.0.1:*", "", "SLURM_PROCID"}},
		"mpirun 4, no PMIx":       {openMPIBase + " OMPI_COMM_WORLD_LOCAL_SIZE=4", want{1, 4, 1, 4, "127.0.0.1:*", "", "OMPI_COMM_WORLD_RANK"}},
		"mpirun 4, in a pod":      {openMPIBase + " OMPI_COMM_WORLD_LOCAL_SIZE=4 JOB_COMPLETION_INDEX=0 WORLD_SIZE=2", want{1, 4, 1, 4, "127.0.0.1:*", "", "OMPI_COMM_WORLD_RANK"}},
		"env under srun":          {srunBase + " MASTER_ADDR=127.0.0.1", want{1, 4, -1, -1, "127.0.0.1:29500", "", "MASTER_ADDR, SLURM_PROCID"}},
		"env under mpirun":        {"MASTER_ADDR=127.0.0.1 MASTER_PORT=81 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", want{2, 4, -1, -1, "127.0.0.1:81", "", "MASTER_ADDR, OMPI_COMM_WORLD_RANK"}},
		"env in an indexed job":   {"MASTER_ADDR=pi-0.pi JOB_COMPLETION_INDEX=2 WORLD_SIZE=3 TUTTI_SECRET=" + testSecret, want{2, 3, -1, -1, "pi-0.pi:29500", "", "MASTER_ADDR, JOB_COMPLETION_INDEX"}},
		"env, no launcher":        {"MASTER_ADDR=n0 SLURM_PROCID=0 SLURM_NTASKS=4", want{0, 1, 0, 1, "", "", "no launcher"}},
		"indexed job":             {"JOB_COMPLETION_INDEX=1 WORLD_SIZE=3 MASTER_PORT=81 TUTTI_SECRET=" + testSecret, want{1, 3, -1, -1, "n-0.lab:81", "", "JOB_COMPLETION_INDEX"}},
		"indexed job of one pod":  {"JOB_COMPLETION_INDEX=0 WORLD_SIZE=1", want{0, 1, -1, -1, "", "", "JOB_COMPLETION_INDEX"}},
		"srun -n 1":               {"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1", want{0, 1, 0, 1, "", "", "no launcher"}},
		"forced to be alone":      {"TUTTI_BOOTSTRAP=single OMPI_COMM_WORLD_SIZE=4", want{0, 1, 0, 1, "", "", "TUTTI_BOOTSTRAP"}},
		"indexed job, no size":    {"JOB_COMPLETION_INDEX=3", want{0, 1, 0, 1, "", "", "no launcher"}},
		"garbage of a stranger's": {"PMI_SIZE=many PMIX_NAMESPACE=x PMIX_RANK=4294967294", want{0, 1, 0, 1, "", "", "no launcher"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := finderOf(strings.Split(c.env, " ")...)
			if strings.HasPrefix(name, "indexed job") {
				f.hostname = func() (string, error) { return "n-1.lab", nil }
			}
			j, err := f.find(Options{})
			if err != nil {
				t.Fatal(err)
			}
			root := j.Root
			if host, _, _ := net.SplitHostPort(root); strings.HasSuffix(c.root, ":*") && root != host+":29500" {
				root = host + ":*" // a derived port, which a separate test checks
			}
			got := want{j.Rank, j.Size, j.LocalRank, j.LocalSize, root, strings.Join(j.Peers, ","), c.source}
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			src := c.source
			if src == "own" {
				src = "this machine's addresses"
			}
			if !strings.Contains(j.Source, src) {
				t.Errorf("source %q does not name %q", j.Source, src)
			}
		})
	}
}

// Four processes of one launcher must not become four jobs of one rank because another launcher has
// left its variables. The error names the variables of both.
func TestALeftoverVariableDoesNotMakeAJobOfOneRank(t *testing.T) {
	const (
		task = " SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4"
		ompi = " OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4"
		pmi  = " PMI_RANK=0 PMI_SIZE=4"
		tf   = `TF_CONFIG={"cluster":{"worker":["127.0.0.1:1"]},"task":{"type":"worker","index":0}}`
	)
	for name, c := range map[string]struct{ env, source, other string }{
		"env, srun":             {"MASTER_ADDR=localhost RANK=0 WORLD_SIZE=1" + task, "WORLD_SIZE", "SLURM_STEP_NUM_TASKS=4 of srun"},
		"torchrun, mpirun":      {"TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=1" + ompi, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE=4 of mpirun"},
		"torchrun, srun":        {"TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=1" + task, "WORLD_SIZE", "SLURM_STEP_NUM_TASKS=4 of srun"},
		"tf_config, srun":       {tf + task, "TF_CONFIG", "SLURM_STEP_NUM_TASKS=4 of srun"},
		"indexed job, mpiexec":  {"JOB_COMPLETION_INDEX=0 WORLD_SIZE=1" + pmi, "WORLD_SIZE", "PMI_SIZE=4 of mpiexec"},
		"indexed job, a rank":   {"JOB_COMPLETION_INDEX=0 WORLD_SIZE=1 PMIX_NAMESPACE=x PMIX_RANK=3", "WORLD_SIZE", "PMIX_RANK=3 of a PMIx launcher"},
		"tuttirun, mpiexec":     {"TUTTI_RANK=0 TUTTI_SIZE=1" + pmi, "TUTTI_SIZE", "PMI_SIZE=4 of mpiexec"},
		"a list of one, mpirun": {"TUTTI_HOSTS=127.0.0.1:1 TUTTI_RANK=0" + ompi, "TUTTI_HOSTS", "OMPI_COMM_WORLD_SIZE=4 of mpirun"},
	} {
		_, err := finderOf(strings.Fields(c.env)...).find(Options{})
		if !errors.Is(err, fault.Refused) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want Refused in one line", name, err)
			continue
		}
		for _, want := range []string{c.source, c.other, "TUTTI_BOOTSTRAP"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
	}
	for name, env := range map[string]string{
		"a pod's, mpirun of one rank":  "RANK=0 WORLD_SIZE=1 MASTER_ADDR=n0 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
		"a batch script":               "RANK=0 WORLD_SIZE=1 MASTER_ADDR=n0 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4",
		"srun of one task, torchrun":   "TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
		"TUTTI_BOOTSTRAP says env":     "TUTTI_BOOTSTRAP=env MASTER_ADDR=localhost RANK=0 WORLD_SIZE=1" + task,
		"TUTTI_BOOTSTRAP says rank 0":  "TUTTI_BOOTSTRAP=tuttirun TUTTI_RANK=0 TUTTI_SIZE=1" + pmi,
		"TUTTI_BOOTSTRAP says one pod": "TUTTI_BOOTSTRAP=k8s JOB_COMPLETION_INDEX=0 WORLD_SIZE=1" + pmi,
	} {
		if j, err := finderOf(strings.Fields(env)...).find(Options{}); err != nil || j.Size != 1 {
			t.Errorf("%s: got %v, %v, want a job of one rank", name, j, err)
		}
	}
}

func TestFindReturnsTheRole(t *testing.T) {
	cluster := `TF_CONFIG={"cluster":{"chief":["127.0.0.1:1"],"worker":["127.0.0.1:2","127.0.0.1:3"],"ps":["127.0.0.1:4"],"evaluator":["127.0.0.1:5"]},"task":{"type":%q,"index":0}}`
	const rank = "TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:1 "
	for env, want := range map[string]string{
		fmt.Sprintf(cluster, "chief"):     "chief",
		fmt.Sprintf(cluster, "worker"):    "worker",
		fmt.Sprintf(cluster, "ps"):        "ps",
		fmt.Sprintf(cluster, "evaluator"): "evaluator",
		`TF_CONFIG={"cluster":{"master":["127.0.0.1:1"]},"task":{"type":"master","index":0}}`: "master",
		`TF_CONFIG={"task":{"type":"worker","index":0}}`:                                      "",
		// The role belongs to the job that TF_CONFIG describes, and not to another job.
		"TUTTI_RANK=0 TUTTI_SIZE=1 " + fmt.Sprintf(cluster, "worker"): "",
		"TUTTI_RANK=0 TUTTI_SIZE=1 TUTTI_ROLE=evaluator":              "evaluator",
		// DMLC_ROLE names the role where another source gives the rank.
		rank + "DMLC_ROLE=worker":                                                    "worker",
		rank + "DMLC_ROLE=server":                                                    "server",
		"RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost DMLC_ROLE=server":                 "server",
		"TUTTI_HOSTS=127.0.0.1:1,127.0.0.1:2 TUTTI_RANK=1 DMLC_ROLE=server":          "server",
		"SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n7 DMLC_ROLE=server " + srunBase: "server",
		rank + "DMLC_ROLE=scheduler TUTTI_ROLE=chief":                                "chief",
		fmt.Sprintf(cluster, "ps") + " DMLC_ROLE=server":                             "ps",
		"TUTTI_BOOTSTRAP=single DMLC_ROLE=server":                                    "server",
	} {
		j, err := finderOf(strings.Split(env, " ")...).find(Options{})
		if err != nil {
			t.Errorf("%s: %v", env, err)
		} else if j.Role != want {
			t.Errorf("%s: got the role %q, want %q", env, j.Role, want)
		}
	}
}

func TestFindRefusesAndNamesVariableValueAndRemedy(t *testing.T) {
	for name, c := range map[string]struct {
		env  string
		want []string
	}{
		"rank without size":     {"TUTTI_RANK=1", []string{"TUTTI_RANK", "TUTTI_SIZE is not set"}},
		"size without rank":     {"TUTTI_SIZE=2", []string{"TUTTI_SIZE", "TUTTI_RANK is not set"}},
		"root alone":            {"TUTTI_ROOT=a:1", []string{"TUTTI_RANK", "TUTTI_SIZE is not set"}},
		"rank no number":        {"TUTTI_RANK=one TUTTI_SIZE=2", []string{"TUTTI_RANK", `"one"`, "not a number"}},
		"rank too large":        {"TUTTI_RANK=2 TUTTI_SIZE=2", []string{"TUTTI_RANK", `"2"`, "count from 0"}},
		"negative rank":         {"TUTTI_RANK=-1 TUTTI_SIZE=2", []string{"TUTTI_RANK", `"-1"`}},
		"size zero":             {"TUTTI_RANK=0 TUTTI_SIZE=0", []string{"TUTTI_SIZE", `"0"`}},
		"size absurd":           {"TUTTI_RANK=0 TUTTI_SIZE=99999999999999999999", []string{"TUTTI_SIZE", "999"}},
		"no root":               {"TUTTI_RANK=0 TUTTI_SIZE=2", []string{"TUTTI_SIZE=2", "TUTTI_ROOT is not set", "tuttirun"}},
		"root without port":     {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=n0", []string{"TUTTI_ROOT", `"n0"`, "host:port"}},
		"root port 0":           {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=n0:0", []string{"TUTTI_ROOT", `"n0:0"`, "port"}},
		"root with spaces":      {"TUTTI_RANK=0,TUTTI_SIZE=2,TUTTI_ROOT=n 0:1", []string{"TUTTI_ROOT", `"n 0:1"`, "host"}},
		"local rank":            {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=[::1]:1 TUTTI_LOCAL_RANK=1 TUTTI_LOCAL_SIZE=1", []string{"TUTTI_LOCAL_RANK", `"1"`}},
		"listen fd":             {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=[::1]:1 TUTTI_LISTEN_FD=1", []string{"TUTTI_LISTEN_FD", `"1"`, "standard"}},
		"listen fd no number":   {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=[::1]:1 TUTTI_LISTEN_FD=x", []string{"TUTTI_LISTEN_FD", `"x"`}},
		"listen":                {"TUTTI_LISTEN=a,b:c", []string{"TUTTI_LISTEN"}},
		"incarnation":           {"TUTTI_RANK=0 TUTTI_SIZE=1 TUTTI_INCARNATION=4294967296", []string{"TUTTI_INCARNATION", "4294967296"}},
		"job name":              {"TUTTI_RANK=0 TUTTI_SIZE=1 TUTTI_JOB=a/b", []string{"TUTTI_JOB", `"a/b"`}},
		"timeout":               {"TUTTI_TIMEOUT=soon", []string{"TUTTI_TIMEOUT", `"soon"`, "90s"}},
		"negative timeout":      {"TUTTI_TIMEOUT=-1s", []string{"TUTTI_TIMEOUT", `"-1s"`}},
		"report":                {"TUTTI_REPORT_TRANSPORT=maybe", []string{"TUTTI_REPORT_TRANSPORT", `"maybe"`}},
		"unknown source":        {"TUTTI_BOOTSTRAP=mpi", []string{"TUTTI_BOOTSTRAP", `"mpi"`, "tf_config"}},
		"source does not apply": {"TUTTI_BOOTSTRAP=torchrun", []string{"TUTTI_BOOTSTRAP", `"torchrun"`, "TORCHELASTIC_RUN_ID"}},
		"hosts, size differs":   {"TUTTI_HOSTS=a:1,b:1 TUTTI_SIZE=3 TUTTI_RANK=0", []string{"TUTTI_SIZE=3", "TUTTI_HOSTS lists 2"}},
		"hosts, no port":        {"TUTTI_HOSTS=a:1;b TUTTI_RANK=0", []string{"TUTTI_HOSTS", "entry 0"}},
		"hosts, empty entry":    {"TUTTI_HOSTS=a:1,,b:1 TUTTI_RANK=0", []string{"TUTTI_HOSTS", "entry 1"}},
		"hosts, one twice":      {"TUTTI_HOSTS=a:1,b:1,a:1 TUTTI_RANK=0", []string{"TUTTI_HOSTS", `"a:1" twice`, "ranks 0 and 2"}},
		"hosts, rank outside":   {"TUTTI_HOSTS=a:1,b:1 TUTTI_RANK=2", []string{"TUTTI_RANK", `"2"`}},
		"hosts, none is ours":   {"TUTTI_HOSTS=a:1,b:1", []string{"TUTTI_HOSTS", "n1.lab", "TUTTI_RANK"}},
		"hosts, two are ours":   {"TUTTI_HOSTS=127.0.0.1:1,127.0.0.1:2", []string{"TUTTI_HOSTS", "entries 0 and 1", "TUTTI_RANK"}},
		"hosts, no secret":      {"TUTTI_HOSTS=a:1,b:1 TUTTI_RANK=0", []string{"no secret", "a:1", "TUTTI_SECRET_FILE", "WithInsecure"}},
		"env, rank missing":     {"WORLD_SIZE=2 MASTER_ADDR=localhost", []string{"WORLD_SIZE", "RANK is not set"}},
		"env, port":             {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=http", []string{"MASTER_PORT", `"http"`}},
		"env, addr":             {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a/b", []string{"MASTER_ADDR", `"a/b"`}},
		"env, no secret":        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=n0", []string{"no secret", "n0:29500", "TUTTI_SECRET"}},
		"env inside mpirun":     {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost OMPI_COMM_WORLD_RANK=3", []string{"RANK=0", "OMPI_COMM_WORLD_RANK=3", "TUTTI_BOOTSTRAP=env"}},
		"torchrun, no addr":     {torchBase, []string{"WORLD_SIZE=4", "MASTER_ADDR is not set"}},
		"torchrun, restarts":    {torchBase + " MASTER_ADDR=n0 GROUP_WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=x", []string{"TORCHELASTIC_RESTART_COUNT", `"x"`}},
		"mpirun 4, two hosts":   {openMPIBase + " OMPI_COMM_WORLD_LOCAL_SIZE=2", []string{"OMPI_COMM_WORLD_SIZE=4", "Open MPI", "MASTER_ADDR"}},
		"no torchrun":           {"PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto", []string{"PET_NNODES=2", "torchrun --no-python", "TUTTI_BOOTSTRAP=single"}},
		"N singletons: ompi":    {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4", []string{"OMPI_COMM_WORLD_SIZE=4", "Open MPI", "tuttirun", "TUTTI_BOOTSTRAP=single"}},
		"N singletons: pmi":     {"PMI_RANK=0 PMI_SIZE=2", []string{"PMI_SIZE=2", "Hydra"}},
		"N singletons: stale":   {"PMI_FD=1048577 PMI_RANK=0 PMI_SIZE=2", []string{"PMI_SIZE=2", "Hydra"}},
		"N singletons: pmix":    {"PMIX_NAMESPACE=x PMIX_RANK=1", []string{"PMIX_RANK=1", "PMIx"}},
		"N singletons: slurm":   {"SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4", []string{"SLURM_STEP_NUM_TASKS=4", "srun"}},
		"N singletons: salloc":  {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", []string{"OMPI_COMM_WORLD_SIZE=4", "Open MPI"}},
		"srun, no list":         {srunBase, []string{"SLURM_STEP_NODELIST", `""`}},
		"srun, bad list":        {srunBase + " SLURM_STEP_NODELIST=n[1", []string{"SLURM_STEP_NODELIST", `"n[1"`, "bracket"}},
		"srun, no secret":       {srunBase + " SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2", []string{"no secret", "n1:", "TUTTI_SECRET_FILE", "(umask 077; openssl rand -hex 16 > FILE)"}},
		"srun, arbitrary":       {"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2]", []string{"SLURM_NODEID=1", "MASTER_ADDR", "distribution"}},
		"mpirun in salloc":      {srunBase + " OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 SLURM_STEP_NODELIST=n[1-2]", []string{"OMPI_COMM_WORLD_RANK=2", "SLURM_PROCID=1", "TUTTI_BOOTSTRAP=slurm"}},
		"hydra in salloc":       {srunBase + " PMI_RANK=1 PMI_SIZE=8 SLURM_STEP_NODELIST=n[1-2]", []string{"PMI_SIZE=8", "SLURM_STEP_NUM_TASKS=4", "TUTTI_BOOTSTRAP=slurm"}},
		"indexed job, name":     {"JOB_COMPLETION_INDEX=1 WORLD_SIZE=3", []string{"JOB_COMPLETION_INDEX=1", `"n1.lab"`, "MASTER_ADDR", "headless service"}},
		"indexed job, index":    {"JOB_COMPLETION_INDEX=3 WORLD_SIZE=3", []string{"JOB_COMPLETION_INDEX", `"3"`}},
		"N singletons: torch":   {"WORLD_SIZE=8", []string{"WORLD_SIZE=8", "MASTER_ADDR"}},
		"tf_config, no json":    {"TF_CONFIG={", []string{"TF_CONFIG", `"{"`, "index"}},
		"evaluator of several":  {`TF_CONFIG={"cluster":{"worker":["a:1"]},"task":{"type":"evaluator","index":0}} PMI_RANK=0 PMI_SIZE=4`, []string{"PMI_SIZE=4", "TF_CONFIG", "TUTTI_BOOTSTRAP"}},
		"scheduler":             {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=[::1]:1 DMLC_ROLE=scheduler", []string{`DMLC_ROLE="scheduler"`, "tuttirun -np 4 ./worker : -np 2 ./server"}},
		"scheduler, no rank":    {"DMLC_ROLE=scheduler", []string{`DMLC_ROLE="scheduler"`, "not needed", "tuttirun"}},
		"server, no rank":       {"DMLC_ROLE=server DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1", []string{"DMLC_ROLE=server", "which rank", "tuttirun", "TUTTI_BOOTSTRAP=single"}},
		"role of no rank":       {"TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_ROOT=[::1]:1 DMLC_ROLE=joint", []string{`DMLC_ROLE="joint"`, "worker or server"}},
		"tf_config, no task":    {`TF_CONFIG={"cluster":{"worker":["a:1"]}}`, []string{"TF_CONFIG", "which task"}},
		"tf_config, index":      {`TF_CONFIG={"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":1}}`, []string{"task 1", `"worker"`, "1 of them"}},
		"tf_config, index text": {`TF_CONFIG={"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":"x"}}`, []string{"task.index"}},
		"tf_config, unknown":    {`TF_CONFIG={"cluster":{"boss":["a:1"]},"task":{"type":"boss","index":0}}`, []string{`"boss"`}},
		"tf_config, two heads":  {`TF_CONFIG={"cluster":{"chief":["a:1"],"master":["b:1"]},"task":{"type":"chief","index":0}}`, []string{"chief and a master"}},
		"tf_config, not a list": {`TF_CONFIG={"cluster":{"worker":{"0":"a:1"}},"task":{"type":"worker","index":0}}`, []string{"addresses of worker"}},
		"secret no hex":         {"TUTTI_SECRET=secret!secret!secret!", []string{"TUTTI_SECRET", "hex", "openssl"}},
		"secret short":          {"TUTTI_SECRET=0011", []string{"TUTTI_SECRET", "2 bytes", "openssl"}},
	} {
		t.Run(name, func(t *testing.T) {
			sep := " "
			if name == "root with spaces" {
				sep = ","
			}
			j, err := finderOf(strings.Split(c.env, sep)...).find(Options{})
			if err == nil {
				t.Fatalf("got %v, want an error", j)
			}
			if !errors.Is(err, fault.Refused) {
				t.Errorf("%v is not Refused", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "secret!secret!") {
				t.Errorf("%q tells the secret", err)
			}
		})
	}
}

func TestSettingsTravelWithTheJob(t *testing.T) {
	j, err := finderOf("TUTTI_TRANSPORT=tcp", "TUTTI_ALGORITHM=allreduce:ring", "TUTTI_TUNING=t.json", "TUTTI_TIMEOUT=90",
		"TUTTI_REPORT_TRANSPORT=1", "TUTTI_SECRET="+testSecret).find(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if j.Transport != "tcp" || j.Algorithm != "allreduce:ring" || j.Tuning != "t.json" || !j.ReportTransport || j.Timeout != 90*time.Second || !j.TimeoutSet {
		t.Errorf("got %+v", j)
	}
	if len(j.Secret) != 16 || j.Secret[15] != 15 {
		t.Errorf("got secret %x", j.Secret)
	}
	if j.Host != "n1.lab" || len(j.Warnings) != 0 || j.Loopback {
		t.Errorf("got host %q, notes %q, loopback %v", j.Host, j.Warnings, j.Loopback)
	}
	if strings.Contains(j.String(), "15") {
		t.Errorf("%q tells the secret", j.String())
	}
	j, err = finderOf("TUTTI_TIMEOUT=0").find(Options{})
	if err != nil || j.Timeout != 0 || !j.TimeoutSet {
		t.Errorf("got %+v, %v; want a timeout of none, set", j, err)
	}
}

func TestWithoutSecretTheJobStaysOnLoopbackAndWarns(t *testing.T) {
	env := []string{"TUTTI_RANK=0", "TUTTI_SIZE=2", "TUTTI_ROOT=127.0.0.1:4000"}
	j, err := finderOf(env...).find(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !j.Loopback || len(j.Warnings) != 1 || !strings.Contains(j.Warnings[0], "loopback only") {
		t.Errorf("got loopback %v, notes %q", j.Loopback, j.Warnings)
	}
	if _, err := finderOf(append(env, "TUTTI_LISTEN=0.0.0.0")...).find(Options{}); !errors.Is(err, fault.Refused) {
		t.Errorf("listening beyond loopback without a secret: got %v, want Refused", err)
	}
	j, err = finderOf(append(env, "TUTTI_LISTEN=0.0.0.0")...).find(Options{Insecure: true})
	if err != nil || j.Loopback || len(j.Warnings) != 1 || !strings.Contains(j.Warnings[0], "Insecure") {
		t.Errorf("with Insecure: got %+v, %v", j, err)
	}
	j, err = finderOf(append(env, "TUTTI_LISTEN=0.0.0.0", "TUTTI_INSECURE_PLAIN=1")...).find(Options{})
	if err != nil || j.Loopback || len(j.Warnings) != 1 || !strings.Contains(j.Warnings[0], "INSECURE: no secret") {
		t.Errorf("with TUTTI_INSECURE_PLAIN: got %+v, %v", j, err)
	}
	if j, err = finderOf(append(env, "TUTTI_INSECURE_PLAIN=1")...).find(Options{}); err != nil || !j.Loopback {
		t.Errorf("with TUTTI_INSECURE_PLAIN on loopback: got %+v, %v", j, err)
	}
	j, err = finderOf(env...).find(Options{Secret: make([]byte, 16)})
	if err != nil || j.Loopback || len(j.Warnings) != 0 {
		t.Errorf("with a secret from code: got %+v, %v", j, err)
	}
	if _, err = finderOf(env...).find(Options{Secret: make([]byte, 15)}); !errors.Is(err, fault.Misuse) {
		t.Errorf("with a short secret from code: got %v, want Misuse", err)
	}
}

func TestSecretFile(t *testing.T) {
	const secret = "correct horse battery staple"
	write := func(t *testing.T, text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Run("trimmed, and before the variable", func(t *testing.T) {
		path := write(t, "\n"+secret+" \n", 0o600)
		j, err := finderOf("TUTTI_SECRET_FILE="+path, "TUTTI_SECRET="+testSecret).find(Options{})
		if err != nil || string(j.Secret) != secret {
			t.Fatalf("got %v, %v", j, err)
		}
	})
	for name, c := range map[string]struct {
		path func(t *testing.T) string
		want string
	}{
		"missing":          {func(t *testing.T) string { return filepath.Join(t.TempDir(), "no") }, "cannot be read"},
		"directory":        {func(t *testing.T) string { return t.TempDir() }, "not a regular file"},
		"empty":            {func(t *testing.T) string { return write(t, " \n", 0o600) }, "no secret of 16"},
		"too long":         {func(t *testing.T) string { return write(t, strings.Repeat("x", 4097), 0o600) }, "no secret of 16"},
		"group readable":   {func(t *testing.T) string { return write(t, secret, 0o640) }, "chmod 600"},
		"world readable":   {func(t *testing.T) string { return write(t, secret, 0o604) }, "chmod 600"},
		"others may write": {func(t *testing.T) string { return write(t, secret, 0o602) }, "chmod 600"},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOOS == "windows" && c.want == "chmod 600" {
				// Reason: a mode on Windows shows no access control list.
				t.Skip("file modes do not show access control lists")
			}
			_, err := finderOf("TUTTI_SECRET_FILE=" + c.path(t)).find(Options{})
			if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "TUTTI_SECRET_FILE") {
				t.Errorf("got %v, want Refused with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "horse") {
				t.Errorf("%q tells the secret", err)
			}
		})
	}
}

// This test checks the derived port. All workers of one torchrun derive the same port, which is not
// MASTER_PORT. Another run, or another incarnation on a single node, derives another port. On
// several nodes the restart counts may differ, so they must not change the port.
func TestTorchrunDerivesAPortAllRanksAgreeOn(t *testing.T) {
	root := func(env string) string {
		j, err := finderOf(strings.Split("WORLD_SIZE=4 MASTER_ADDR=n0 MASTER_PORT=29500 TUTTI_SECRET="+testSecret+" "+env, " ")...).find(Options{})
		if err != nil {
			t.Fatal(err)
		}
		return j.Root
	}
	base := root("TORCHELASTIC_RUN_ID=a RANK=0 GROUP_WORLD_SIZE=2")
	for name, c := range map[string]struct {
		env  string
		same bool
	}{
		"another rank":                {"TORCHELASTIC_RUN_ID=a RANK=3 GROUP_WORLD_SIZE=2", true},
		"another agent's restarts":    {"TORCHELASTIC_RUN_ID=a RANK=3 GROUP_WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=1", true},
		"a restart on one node":       {"TORCHELASTIC_RUN_ID=a RANK=3 GROUP_WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=1", false},
		"another run":                 {"TORCHELASTIC_RUN_ID=b RANK=0 GROUP_WORLD_SIZE=2", false},
		"torch's own port is left be": {"TORCHELASTIC_RUN_ID=a RANK=0 GROUP_WORLD_SIZE=2", true},
	} {
		if got := root(c.env); (got == base) != c.same {
			t.Errorf("%s: got %s beside %s, want same=%v", name, got, base, c.same)
		}
	}
	if base == "n0:29500" {
		t.Error("the port is MASTER_PORT, where torch's store listens")
	}
}

func TestJobsOfMpirunDeriveDifferentPorts(t *testing.T) {
	root := func(rank int, random string) string {
		env := strings.NewReplacer("RANK=1", "RANK="+itoa(rank), "749c-ee13", random).Replace(openMPIBase)
		j, err := finderOf(strings.Fields(env + " OMPI_COMM_WORLD_LOCAL_SIZE=4")...).find(Options{})
		if err != nil {
			t.Fatal(err)
		}
		return j.Root
	}
	if a, b := root(0, "a"), root(3, "a"); a != b {
		t.Errorf("ranks 0 and 3 of a job: got %s and %s, want one address", a, b)
	}
	if a, b := root(0, "a"), root(0, "b"); a == b {
		t.Errorf("two jobs: got %s for both, want two ports", a)
	}
}

func TestListsThatDifferAreJobsOfDifferentNames(t *testing.T) {
	name := func(env ...string) string {
		j, err := finderOf(env...).find(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !plainName(j.Name) {
			t.Errorf("%q is no plain name", j.Name)
		}
		return j.Name
	}
	a := name("TUTTI_HOSTS=127.0.0.1:1,127.0.0.1:2", "TUTTI_RANK=0")
	if b := name("TUTTI_HOSTS=127.0.0.1:1,127.0.0.1:2", "TUTTI_RANK=1"); a != b {
		t.Errorf("two ranks of one list: %q and %q", a, b)
	}
	if b := name("TUTTI_HOSTS=127.0.0.1:1,127.0.0.1:3", "TUTTI_RANK=0"); a == b {
		t.Errorf("two lists: %q both", a)
	}
	if got := name("TUTTI_HOSTS=127.0.0.1:1,127.0.0.1:2", "TUTTI_RANK=0", "TUTTI_JOB=mine"); got != "mine" {
		t.Errorf("got %q, want mine", got)
	}
}

// This test checks that the table in the package comment lists the sources in the order of the
// code.
func TestSourcesStandInTheDocumentedOrder(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var inDoc, inCode []string
	for line := range strings.Lines(string(doc)) {
		fields := strings.Fields(strings.TrimPrefix(line, "//"))
		if len(fields) > 2 && len(fields[0]) == 1 && fields[0][0] >= '1' && fields[0][0] <= '9' && !strings.HasPrefix(fields[1], "(") {
			inDoc = append(inDoc, fields[1])
		}
	}
	for _, s := range sources() {
		inCode = append(inCode, s.name)
	}
	if !slices.Equal(inDoc, inCode) {
		t.Errorf("documented %v, in code %v", inDoc, inCode)
	}
}

func TestFirstHostOfSlurmsList(t *testing.T) {
	for list, want := range map[string]string{
		"n7":                    "n7",
		"n[1-2,7],gpu[001-003]": "n1",
		"gpu[001-003]-ib,n1":    "gpu001-ib",
		"r[3,5]c[0-1]":          "r3c0",
		"a.b-c,d":               "a.b-c",
		"":                      "",
		"n[1":                   "",
		",n1":                   "",
		"n 1":                   "",
	} {
		if got, err := firstHost(list); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", list, got, err, want)
		}
	}
}

// A pod's own entry in /etc/hosts has the domain of its headless service.
func TestIndexedJobFindsItsDomain(t *testing.T) {
	f := finderOf("JOB_COMPLETION_INDEX=2", "WORLD_SIZE=3", "TUTTI_SECRET="+testSecret)
	f.hostname = func() (string, error) { return "pi-2", nil }
	f.hostsFile = func() (string, error) {
		return "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n10.244.1.5\tpi-2.pi.default.svc.cluster.local\tpi-2\n", nil
	}
	j, err := f.find(Options{})
	if err != nil || j.Root != "pi-0.pi.default.svc.cluster.local:29500" || j.Rank != 2 || j.Size != 3 {
		t.Errorf("got %+v, %v, want pi-0.pi.default.svc.cluster.local:29500", j, err)
	}
	f.hostsFile = func() (string, error) { return "# pi-2.no\n10.244.1.5 pi-2\n", nil }
	if j, err := f.find(Options{}); !errors.Is(err, fault.Refused) {
		t.Errorf("no headless service: got %+v, %v, want Refused", j, err)
	}
}

package launch

import (
	"errors"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/launch/internal/placement"
)

// TestEveryOptionOfOtherLaunchersIsKnown compares the table of options with the lists of
// testdata/options.txt.
func TestEveryOptionOfOtherLaunchersIsKnown(t *testing.T) {
	text, err := os.ReadFile("testdata/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=/h", "PWD=/"}
	baseline, err := parse([]string{"-n", "1", "p"}, env)
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for line := range strings.Lines(string(text)) {
		if line[0] == '#' || line[0] == '\n' {
			continue
		}
		words, err := splitWords(line)
		if err != nil {
			t.Fatal(err)
		}
		ran++
		args := words[1:]
		if i := slices.Index(args, "testdata/programs"); i < 0 {
			// If the option sets the number of ranks, it must not set 1, because the baseline has 1
			// rank.
			args = append([]string{"-n", "1"}, append(args, "p")...)
		}
		// These options determine the number of ranks, and contradict -n 1.
		if slices.Contains([]string{"-N", "-npernode", "-pernode", "-npersocket", "--ppr", "-ppn", "-perhost", "-grr"}, words[1]) {
			args = args[2:]
		}
		req, err := parse(args, env)
		var usage usageError
		var ignored []string
		if err == nil {
			ignored = req.warnings
			req.warnings = nil
		}
		switch words[0] {
		case "does":
			if err != nil || len(ignored) > 0 || reflect.DeepEqual(req, baseline) {
				t.Errorf("%s: got %v, warnings %q and the job %+v, want another job than without the option", line, err, ignored, req)
			}
		case "has":
			if err != nil || len(ignored) > 0 || !reflect.DeepEqual(req, baseline) {
				t.Errorf("%s: got %v, warnings %q and the job %+v, want the same job as without the option", line, err, ignored, req)
			}
		case "ignores":
			if err != nil || len(ignored) != 1 || !strings.Contains(ignored[0], words[1]) && !strings.Contains(ignored[0], "--mca") || !reflect.DeepEqual(req, baseline) {
				t.Errorf("%s: got %v, warnings %q and the job %+v, want one warning and the same job", line, err, ignored, req)
			}
		case "refuses":
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), "want ") && !strings.Contains(err.Error(), "; ") {
				t.Errorf("%s: got %v, want an error that names the remedy", line, err)
			}
		default:
			t.Errorf("%s: got %q, want does, has, ignores or refuses", line, words[0])
		}
	}
	if ran < 200 {
		t.Errorf("got %d options, want more than 200: testdata/options.txt is not what it was", ran)
	}
}

// The command line is what horovodrun's MPI mode runs for two ranks on two hosts, with the name of
// one host in place of both names.
func TestTheCommandLineOfHorovodrun(t *testing.T) {
	const line = `--allow-run-as-root --tag-output -np 2 -H localhost:1,localhost:1 -bind-to none -map-by slot -mca pml ob1 -mca btl ^openib
		-mca plm_rsh_args "-p 2222 -i key" -mca btl_tcp_if_include eth1 -x NCCL_SOCKET_IFNAME=eth1 --output-filename out -x PATH -x HOME python train.py --epochs 3`
	args, err := splitWords(line)
	if err != nil {
		t.Fatal(err)
	}
	req, err := parse(args, []string{"PATH=/bin", "HOME=/h"})
	if err != nil {
		t.Fatal(err)
	}
	j := req.job
	if len(j.Apps) != 1 || j.Apps[0].Ranks != 2 || !slices.Equal(j.Apps[0].Args, []string{"python", "train.py", "--epochs", "3"}) ||
		!slices.Equal(j.Apps[0].Set, []string{"NCCL_SOCKET_IFNAME=eth1", "PATH=/bin", "HOME=/h"}) {
		t.Errorf("got programs %+v", j.Apps)
	}
	if want := []placement.Host{{Name: "localhost", Slots: 2}}; !slices.EqualFunc(j.Hosts, want, func(a, b placement.Host) bool { return a.Name == b.Name && a.Slots == b.Slots }) {
		t.Errorf("got hosts %+v, want %+v", j.Hosts, want)
	}
	if !slices.Equal(j.AgentArgs, []string{"-p", "2222", "-i", "key"}) || j.Interface != "=eth1" || j.Placement.Bind != placement.Slot {
		t.Errorf("got %+v", j)
	}
	if len(req.warnings) != 1 || !strings.HasSuffix(req.warnings[0], ": --mca pml, --mca btl") {
		t.Errorf("got warnings %q, want one about pml and btl", req.warnings)
	}
}

func TestTunablesBecomeVariablesOfTheRanks(t *testing.T) {
	args := strings.Fields("--fusion-threshold-mb 32 --cycle-time-ms 3.5 --stall-check-warning-time-seconds 9 --gloo-timeout-seconds 30 --master-addr n1 -x TUTTI_CYCLE_TIME=7 -np 1 p")
	req, err := parse(args, nil)
	if err != nil {
		t.Fatal(err)
	}
	env := rankEnv([]string{"TUTTI_FUSION_THRESHOLD=1"}, &req.job, &req.job.Apps[0], jobInfo{size: 1}, 0)
	for name, want := range map[string]string{
		"TUTTI_FUSION_THRESHOLD": "33554432", "TUTTI_CYCLE_TIME": "7", "TUTTI_STALL_CHECK_TIME_SECONDS": "9", "TUTTI_TIMEOUT": "30s", "MASTER_ADDR": "n1",
	} {
		if got, _ := lookup(env, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for _, line := range []string{"--fusion-threshold-mb x", "--fusion-threshold-mb -1", "--cycle-time-ms x", "--cache-capacity -3", "--cache-capacity NaN", "--gloo-timeout-seconds x", "--role="} {
		if _, err := parse(append(strings.Fields(line), "p"), nil); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: got %v, want an error that says what is wanted", line, err)
		}
	}
}

func TestEachOfSeveralProgramsIsARole(t *testing.T) {
	for line, want := range map[string][]string{
		"-np 1 bin/ps : -np 2 bin/worker":                       {"ps", "worker"},
		"-np 1 --role chief bin/worker : -np 2 bin/worker":      {"chief", "worker"},
		"--role a -np 1 -x TUTTI_ROLE=b p":                      {"b"},
		"-np 1 p":                                               {""},
		"-np 1 --role ps x : -np 1 --role ps -x ROLE_NAME=ps y": {"ps", "ps"},
	} {
		req, err := parse(strings.Fields(line), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range req.job.Apps {
			// The role that this process has in an outer job does not count.
			env := rankEnv(baseEnv([]string{"TUTTI_ROLE=outer"}), &req.job, &req.job.Apps[i], jobInfo{size: 3}, 0)
			got, _ := lookup(env, "TUTTI_ROLE")
			name, _ := lookup(env, "ROLE_NAME")
			if got != want[i] || got != name && got != "b" {
				t.Errorf("%s: got the role %q and ROLE_NAME=%q of program %d, want %q", line, got, name, i, want[i])
			}
		}
	}
}

func TestVariablesOfOtherLaunchersAreHonoured(t *testing.T) {
	for setting, check := range map[string]func(j *Job) bool{
		"OMPI_MCA_orte_default_hostfile=testdata/hosts.openmpi":     func(j *Job) bool { return len(j.Hosts) == 1 && j.Apps[0].Ranks == 4 },
		"PRTE_MCA_prte_default_hostfile=testdata/hosts.openmpi":     func(j *Job) bool { return j.Apps[0].Ranks == 4 },
		"HYDRA_HOST_FILE=testdata/hosts.hydra":                      func(j *Job) bool { return j.Apps[0].Ranks == 4 && j.Placement.Over == placement.Wrap },
		"I_MPI_HYDRA_HOST_FILE=testdata/hosts.hydra":                func(j *Job) bool { return j.Apps[0].Ranks == 4 },
		"OMPI_MCA_orte_keep_fqdn_hostnames=true":                    func(j *Job) bool { return j.Apps[0].Ranks == runtime.NumCPU() },
		"OMPI_MCA_plm_rsh_agent=/bin/agent -q : ssh":                func(j *Job) bool { return slices.Equal(j.Agent, []string{"/bin/agent", "-q"}) },
		"OMPI_MCA_plm_rsh_args=-o ConnectionAttempts=10":            func(j *Job) bool { return slices.Equal(j.AgentArgs, []string{"-o", "ConnectionAttempts=10"}) },
		"HYDRA_LAUNCH_EXTRA_ARGS=-o ConnectionAttempts=10":          func(j *Job) bool { return len(j.AgentArgs) == 2 },
		"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS=-o ConnectTimeout=1": func(j *Job) bool { return len(j.AgentArgs) == 2 },
		"OMPI_ALLOW_RUN_AS_ROOT=1":                                  func(j *Job) bool { return true },
		"I_MPI_PERHOST=3":                                           func(j *Job) bool { return j.Apps[0].Ranks == 3 },
		"I_MPI_PERHOST=allcores":                                    func(j *Job) bool { return j.Apps[0].Ranks == runtime.NumCPU() },
		"MPIEXEC_TIMEOUT=7":                                         func(j *Job) bool { return j.Timeout.Seconds() == 7 },
		"OMPI_MCA_pml=ob1":                                          func(j *Job) bool { return true },
	} {
		req, err := parse([]string{"p"}, []string{setting})
		if err != nil || len(req.warnings) > 0 || !check(&req.job) {
			t.Errorf("%s: got %v and %+v", setting, err, req)
		}
	}
	// An option on the command line takes precedence over a variable.
	env := []string{"OMPI_MCA_orte_default_hostfile=/no/such/file", "MPIEXEC_TIMEOUT=7", "I_MPI_PERHOST=3", "OMPI_MCA_orte_set_default_slots=5"}
	if req, err := parse(strings.Fields("-H localhost:2 --timeout 9 -ppn 1 p"), env); err != nil || req.job.Apps[0].Ranks != 1 || req.job.Timeout.Seconds() != 9 {
		t.Errorf("got %v and %+v", err, req)
	}
	if _, err := parse([]string{"p"}, env[:1]); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("got %v, want an error that names the file", err)
	}
	if _, err := parse([]string{"p"}, []string{"MPIEXEC_TIMEOUT=soon"}); err == nil || !strings.Contains(err.Error(), "variable MPIEXEC_TIMEOUT") {
		t.Errorf("got %v, want an error that names the variable", err)
	}
}

func TestAFileOfPrograms(t *testing.T) {
	req, err := parse([]string{"-l", "--app", "testdata/programs"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := req.job.Apps
	if len(a) != 2 || a[0].Ranks != 1 || !slices.Equal(a[0].Args, []string{"first", "an argument"}) || !slices.Equal(a[0].Set, []string{"A=b c"}) ||
		a[1].Ranks != 2 || !slices.Equal(a[1].Args, []string{"second"}) {
		t.Errorf("got %+v", a)
	}
	dir := t.TempDir()
	for text, want := range map[string]string{
		"# it's empty\n":        "got no program",
		"-np x p\n":             ":1: -np: got \"x\"",
		"\n-np 1 'p\n":          ":2: got",
		"--app testdata/x\n":    "on the command line only",
		"-np 1\n":               ":1: no program given",
		"-np 1 a\n-np 9999 b\n": ":2: -np: got",
	} {
		file := dir + "/programs"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := parse([]string{"--app", file}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if _, err := parse([]string{"--app", "testdata/programs", "p"}, nil); err == nil || !strings.Contains(err.Error(), "all programs in the file") {
		t.Errorf("got %v, want an error about the program beside the file", err)
	}
}

func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":                         nil,
		"  ":                       nil,
		"a  b\tc\r\n":              {"a", "b", "c"},
		`"a b"c 'd "e' f\ g`:       {"a bc", `d "e`, "f g"},
		`'' ""`:                    {"", ""},
		`a\\b '\n'`:                {`a\b`, `\n`},
		`-mca plm_rsh_args "-p 2"`: {"-mca", "plm_rsh_args", "-p 2"},
	} {
		if got, err := splitWords(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`'a`, `"a`, `a\`} {
		if got, err := splitWords(text); err == nil {
			t.Errorf("%q: got %q, want an error", text, got)
		}
	}
}

func TestRanksInheritOnlyTheVariablesOfGenvlist(t *testing.T) {
	env := []string{"PATH=/bin", "A=1", "B=2"}
	for line, want := range map[string][]string{
		"p": env, "-genvall p": env, "-genvlist B p": {"PATH=/bin", "B=2"}, "-genvnone p": {"PATH=/bin"},
	} {
		req, err := parse(strings.Fields(line), env)
		if err != nil {
			t.Fatal(err)
		}
		if got := req.environ(env); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

func TestDescriptionOfPlaces(t *testing.T) {
	j := &Job{DisplayMap: true, ReportBindings: true}
	got := j.describePlaces([]placement.Host{{Name: "n1"}, {Name: "n2"}}, []placement.Assignment{{Host: 1}, {Host: 1}, {Host: 0, CPUs: []int{0, 4, 5}}, {Host: 1}})
	want := []string{
		"n2: ranks 0-1,3", "n1: rank 2",
		"rank 0 on n2 is not bound", "rank 1 on n2 is not bound", "rank 2 on n1 is bound to processors 0,4-5", "rank 3 on n2 is not bound",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := (&Job{}).describePlaces(nil, []placement.Assignment{{}}); got != nil {
		t.Errorf("got %q, want nothing", got)
	}
}

func TestDirectoriesOfPathComeFirst(t *testing.T) {
	args := strings.Fields("--path /one:/two -np 1 p : -np 1 -x PATH=/own -path /three -wdir /here p : -np 1 -gpath /all -gwdir /there p")
	req, err := parse(args, []string{"PATH=/usr/bin:/bin"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"/one:/two:/all:/usr/bin:/bin", "/three:/all:/own", "/all:/usr/bin:/bin"} {
		if got, _ := lookup(req.job.Apps[i].Set, "PATH"); got != want {
			t.Errorf("program %d: got PATH=%s, want %s", i, got, want)
		}
		if got, want := req.job.Apps[i].Dir, []string{"/there", "/here", "/there"}[i]; got != want {
			t.Errorf("program %d: got directory %s, want %s", i, got, want)
		}
	}
}

// What an error recommends in place of an option is itself a command line.
func TestTheRemediesOfRefusedOptionsAreUnderstood(t *testing.T) {
	for _, c := range []struct{ refused, remedy, args string }{
		{"-rf f p", "write -np 1 -H HOST:SLOTS PROGRAM for each rank, with ':' in between", "-np 1 -H n1:2 p : -np 1 -H n2:1 p : -np 1 -H n1:2 p"},
		{"-envlist A p", "-genvlist NAME,... holds", "-np 1 -genvlist A,B p"},
		{"-envnone p", "-genvnone holds", "-np 1 -genvnone p"},
		{"--xterm 0 p", "write xterm -e gdb PROGRAM", "-np 1 xterm -e gdb p"},
		{"--run-path p", "write python SCRIPT", "-np 1 python p"},
		{"-s ./p", "in place of Open MPI's -s write --preload-binary", "-np 1 --preload-binary ./p"},
		{"--set-cwd-to-session-dir p", "by -wdir DIR", "-np 1 -wdir /scratch p"},
	} {
		if _, err := parse(strings.Fields(c.refused), nil); err == nil || !strings.Contains(err.Error(), c.remedy) {
			t.Errorf("%s: got %v, want an error with %q", c.refused, err, c.remedy)
		}
		if req, err := parse(strings.Fields(c.args), nil); err != nil || len(req.warnings) > 0 {
			t.Errorf("%s: got %v, want no error and no warning", c.args, err)
		}
	}
}

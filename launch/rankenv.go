package launch

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/internal/vars"
	"github.com/tutti-go/tutti/launch/internal/placement"
)

// A jobInfo holds the values that all ranks of a job get in their environment.
type jobInfo struct {
	size int
	job  string
	part string // the name of the job's part on the rank's host; see host.part
	root string // the address at which rank 0 listens

	incarnation int // how many times the job was started before

	store bool // the launcher serves a record of the ranks, because they may change

	places []placement.Assignment // the places of the ranks that begin

	timeline string // an absolute path; "" if there is no timeline
}

// place returns where a rank runs. For a rank that was started later, whose place is not known, it
// returns that of a rank in a job on one host.
func (w *jobInfo) place(rank int) placement.Assignment {
	if rank < len(w.places) {
		return w.places[rank]
	}
	return placement.Assignment{Local: rank, LocalSize: w.size, CrossSize: 1}
}

// hosts returns the number of hosts that have ranks.
func (w *jobInfo) hosts() (n int) {
	for _, p := range w.places {
		n = max(n, p.Node+1)
	}
	return max(n, 1)
}

// The descriptors that a rank inherits. They begin after standard error.
const (
	secretFD = 3 // the secret and the rank's credentials; see credentials
	exitsFD  = 4 // the record of ranks that have ended, read-only; see exitRecord
	listenFD = 5 // rank 0 only: the listener
	pmiFD    = 6 // the connection to the PMI server
	joinedFD = 7 // the file by which the rank tells that it has joined; see joinedFile
	storeFD  = 5 // if ranks change, replaces the secret and the listener: the connection to the record of the ranks
)

// baseEnv returns the environment that ranks inherit: env without the variables that would give
// them another identity. Such variables come from another launcher that has started tuttirun
// (mpirun, srun, torchrun), or from an outer job of tuttirun.
func baseEnv(env []string) []string {
	own := vars.Identity()
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(own, name) || vars.IsForeignIdentity(name)
	})
}

// rankEnv returns the environment of one rank. Later settings of a name override earlier settings:
//
//  1. what the rank inherits: baseEnv
//  2. the rank under the names of other launchers (foreignEnv), and its role
//  3. what the user sets for its program: -x, -env
//  4. PWD, if the program has a working directory
//  5. the variables of this job: rank, size, address of rank 0 and so on
//
// The variables of the job come last, so that the user's settings cannot give a rank another
// identity.
func rankEnv(base []string, j *Job, a *App, w jobInfo, rank int) []string {
	env, place := slices.Clone(base), w.place(rank)
	// A process whose rank may change must not get a number that may soon be wrong.
	if !w.store {
		env = append(env, foreignEnv(rank, &w)...)
	}
	role := a.Role
	if role == "" && len(j.Apps) > 1 {
		role = filepath.Base(a.Args[0])
	}
	if role != "" {
		env = append(env, vars.Role+"="+role, "ROLE_NAME="+role)
	}
	env = append(env, a.Set...)
	// Programs expect PWD to name the working directory.
	if a.Dir != "" {
		if dir, err := filepath.Abs(a.Dir); err == nil {
			env = append(env, "PWD="+dir)
		}
	}
	env = append(env,
		vars.Rank+"="+strconv.Itoa(rank),
		vars.Size+"="+strconv.Itoa(w.size),
		vars.LocalRank+"="+strconv.Itoa(place.Local),
		vars.LocalSize+"="+strconv.Itoa(place.LocalSize),
		vars.Job+"="+w.job,
		vars.JobPart+"="+w.part,
	)
	if w.store {
		env = append(env, vars.StoreFD+"="+strconv.Itoa(storeFD))
	} else {
		env = append(env, vars.Root+"="+w.root, vars.Incarnation+"="+strconv.Itoa(w.incarnation), vars.SecretFD+"="+strconv.Itoa(secretFD))
	}
	// Only rank 0 inherits the listener.
	if rank == 0 && !w.store {
		env = append(env, vars.ListenFD+"="+strconv.Itoa(listenFD))
	}
	// In an elastic job, ranks may later run on a host that has none at the start.
	if j.Interface != "" && (w.hosts() > 1 || j.Elastic != nil && (j.Elastic.Discovery != "" || len(j.Hosts) > 1)) {
		env = append(env, vars.Interface+"="+j.Interface)
	}
	if j.Transport != "" {
		env = append(env, vars.Transport+"="+j.Transport)
	}
	if w.timeline != "" {
		env = append(env, vars.Timeline+"="+w.timeline)
	}
	if j.Report {
		env = append(env, vars.Report+"=1")
	}
	if j.ReportBootstrap {
		env = append(env, vars.ReportBootstrap+"=1")
	}
	if j.ReportServers > 0 {
		env = append(env, vars.ReportServers+"="+j.ReportServers.String())
	}
	if j.Plain {
		env = append(env, vars.Plain+"=1")
	}
	return lastOfEach(env)
}

// exitsSettings returns the settings for a rank that inherits a record of ranks that have ended.
func exitsSettings() []string {
	return []string{vars.ExitsFD + "=" + strconv.Itoa(exitsFD), vars.JoinedFD + "=" + strconv.Itoa(joinedFD)}
}

// foreignEnv returns a rank's place under the variable names of Open MPI, MPICH, torchrun and
// Horovod, for programs and scripts that are written for them.
func foreignEnv(rank int, w *jobInfo) (env []string) {
	place := w.place(rank)
	for _, v := range [...]struct {
		value int
		names []string
	}{
		{rank, []string{vars.OpenMPIRank, "PMI_RANK", vars.TorchRank, "ROLE_RANK", "HOROVOD_RANK"}},
		{w.size, []string{vars.OpenMPISize, "PMI_SIZE", vars.TorchSize, "ROLE_WORLD_SIZE", "HOROVOD_SIZE"}},
		{place.Local, []string{
			vars.OpenMPILocalRank, "OMPI_COMM_WORLD_NODE_RANK", "MPI_LOCALRANKID", vars.TorchLocalRank, "HOROVOD_LOCAL_RANK",
		}},
		{place.LocalSize, []string{vars.OpenMPILocalSize, "MPI_LOCALNRANKS", vars.TorchLocalSize, "HOROVOD_LOCAL_SIZE"}},
		{place.Cross, []string{"HOROVOD_CROSS_RANK"}},
		{place.CrossSize, []string{"HOROVOD_CROSS_SIZE"}},
		{place.Node, []string{"GROUP_RANK"}},
		{w.hosts(), []string{vars.TorchGroupSize}},
		{pmiFD, []string{"PMI_FD"}},
	} {
		for _, name := range v.names {
			env = append(env, name+"="+strconv.Itoa(v.value))
		}
	}
	return env
}

// reservedVars returns the variables that only rankEnv may set. The parser ignores the user's
// settings of them.
func reservedVars() []string {
	return []string{vars.Rank, vars.Size, vars.LocalRank, vars.LocalSize, vars.Root, vars.Job, vars.JobPart, vars.Incarnation, vars.SecretFD, vars.ExitsFD, vars.JoinedFD, vars.StoreFD}
}

// lastOfEach keeps only the last setting of each name, because programs differ in which of two
// settings of a name they use.
func lastOfEach(env []string) []string {
	at := make(map[string]int, len(env))
	kept := env[:0]
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			kept[i] = e
			continue
		}
		at[name] = len(kept)
		kept = append(kept, e)
	}
	return kept
}

// lookup returns the value of a variable. The last setting counts.
func lookup(env []string, name string) (string, bool) {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

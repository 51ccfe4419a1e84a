package verbs

import (
	"fmt"
	"strconv"
	"strings"
)

// Several devices or ports of a host are rails: its ranks take them in turn, each one,
// by their number on the host. A Conn has one rail; that all of a host's are used is for
// the ranks on it. Each rank's device reaches each other's, as a routed RoCE v2 network or
// one InfiniBand subnet has it.

// A portName is what TUTTI_VERBS_DEVICE says of one: "mlx5_0", or with its port "mlx5_0:2".
type portName struct {
	device string
	port   int // 0: as TUTTI_VERBS_PORT says
}

func (r portName) String() string {
	if r.port == 0 {
		return r.device
	}
	return fmt.Sprintf("%s:%d", r.device, r.port)
}

// parsePorts reads the rails that a variable names, parted by commas; none for "".
func parsePorts(variable, text string) (ports []portName, err error) {
	if text == "" {
		return nil, nil
	}
	for _, one := range strings.Split(text, ",") {
		name, port, numbered := strings.Cut(strings.TrimSpace(one), ":")
		r := portName{device: name}
		if numbered {
			r.port, err = strconv.Atoi(port)
		}
		if name == "" || err != nil || numbered && (r.port < 1 || r.port > 255) {
			return nil, fmt.Errorf("%s=%q, want DEVICE or DEVICE:PORT, several separated by commas", variable, text)
		}
		ports = append(ports, r)
	}
	return ports, nil
}

// localRankVars are the variables that say which rank of its host a process is, as launchers
// set them: ours, Open MPI's, Intel MPI's and MPICH's, Slurm's. torchrun may be started by
// one of these, whose variables its workers have, too; so its own goes before theirs.
var localRankVars = [...]string{localRankVar, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", torchLocalRankVar}

const (
	localRankVar      = "TUTTI_LOCAL_RANK"
	torchLocalRankVar = "LOCAL_RANK"
	torchRunIDVar     = "TORCHELASTIC_RUN_ID" // torchrun has started this process
)

// localRankOf is which rank of its host this process is, and the variable that says so, the
// first that says anything; 0 and "" where none does.
func localRankOf(getenv func(string) string) (rank int, variable string, err error) {
	names := localRankVars[:]
	if getenv(torchRunIDVar) != "" {
		names = append([]string{localRankVar, torchLocalRankVar}, names...)
	}
	for _, name := range names {
		text := getenv(name)
		if text == "" {
			continue
		}
		if rank, err = strconv.Atoi(text); err != nil || rank < 0 {
			return 0, name, fmt.Errorf("%s=%q, want the number of this rank on its host, 0 or more: it selects one of several ports", name, text)
		}
		return rank, name, nil
	}
	return 0, "", nil
}

// ownPort is w for the one rail that is this process's, and a line about it for people
// where there are several. That it cannot be used is an error of choose's, and no
// other rail is taken then.
func (w *config) ownPort() (own *config, why []string) {
	if len(w.ports) == 0 {
		return w, nil
	}
	one := *w
	r := w.ports[w.localRank%len(w.ports)]
	one.device = r.device
	if r.port != 0 {
		one.port = r.port
	}
	if len(w.ports) > 1 {
		who := fmt.Sprintf("%s is %d", w.localRankVar, w.localRank)
		if w.localRankVar == "" {
			who = "no variable has the number of this rank on its host, so it is 0"
		}
		why = append(why, fmt.Sprintf("ports %v: %s, which selects %v", w.ports, who, r))
	}
	return &one, why
}

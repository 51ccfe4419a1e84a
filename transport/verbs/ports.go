package verbs

import (
	"fmt"
	"strconv"
	"strings"
)

// A host may have several devices or ports. Each rank selects one port, in turn by its number on
// the host. So a Conn uses one port, and the ranks of a host together use all its ports. Every
// device must reach every other, as in a routed RoCE v2 network or one InfiniBand subnet.

// A portName is one entry of TUTTI_VERBS_DEVICE: "mlx5_0", or with its port "mlx5_0:2".
type portName struct {
	device string
	port   int // 0: TUTTI_VERBS_PORT
}

func (r portName) String() string {
	if r.port == 0 {
		return r.device
	}
	return fmt.Sprintf("%s:%d", r.device, r.port)
}

// parsePorts parses the ports in a variable, which are separated by commas. For "" it returns none.
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

// localRankVars are the variables in which launchers store the number of a rank on its host. They
// belong to this module, Open MPI, Intel MPI and MPICH, Slurm, and torchrun. If torchrun has
// started the process, localRankOf checks the variable of torchrun earlier. The reason is that
// torchrun may run under another launcher, and its workers inherit the variables of that launcher.
var localRankVars = [...]string{localRankVar, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", torchLocalRankVar}

const (
	localRankVar      = "TUTTI_LOCAL_RANK"
	torchLocalRankVar = "LOCAL_RANK"
	torchRunIDVar     = "TORCHELASTIC_RUN_ID" // set by torchrun
)

// localRankOf returns the number of this process on its host, and the name of the variable that
// contains it. It returns 0 and "" if no such variable is set.
func localRankOf(getenv func(string) string) (rank int, variable string, err error) {
	// If torchrun has not started this process, LOCAL_RANK may mean anything, so it is checked
	// last.
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

// ownPort returns a config for the one port of this process and, if there are several ports, a line
// for people. If this port cannot be used, choose fails and does not select another port.
func (w *config) ownPort() (own *config, why []string) {
	if len(w.ports) == 0 {
		return w, nil
	}
	one := *w
	r := w.ports[w.localRank%len(w.ports)]
	one.device = r.device
	// An entry without a port leaves the choice to TUTTI_VERBS_PORT.
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

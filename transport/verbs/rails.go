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

// A rail is what TUTTI_VERBS_DEVICE says of one: "mlx5_0", or with its port "mlx5_0:2".
type rail struct {
	device string
	port   int // 0: as TUTTI_VERBS_PORT says
}

func (r rail) String() string {
	if r.port == 0 {
		return r.device
	}
	return fmt.Sprintf("%s:%d", r.device, r.port)
}

// railsOf reads the rails that a variable names, parted by commas; none for "".
func railsOf(variable, text string) (rails []rail, err error) {
	if text == "" {
		return nil, nil
	}
	for _, one := range strings.Split(text, ",") {
		name, port, numbered := strings.Cut(strings.TrimSpace(one), ":")
		r := rail{device: name}
		if numbered {
			r.port, err = strconv.Atoi(port)
		}
		if name == "" || err != nil || numbered && (r.port < 1 || r.port > 255) {
			return nil, fmt.Errorf("%s=%q, want devices, parted by commas, each with \":\" and a port's number or without", variable, text)
		}
		rails = append(rails, r)
	}
	return rails, nil
}

// localRanks are the variables that say which rank of its host a process is, as launchers
// set them: ours, Open MPI's, Intel MPI's and MPICH's, Slurm's. torchrun may be started by
// one of these, whose variables its workers have, too; so its own goes before theirs.
var localRanks = [...]string{ourLocalRank, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", torchLocalRank}

const (
	ourLocalRank   = "TUTTI_LOCAL_RANK"
	torchLocalRank = "LOCAL_RANK"
	torchMark      = "TORCHELASTIC_RUN_ID" // torchrun has started this process
)

// turnOf is which rank of its host this process is, and the variable that says so, the
// first that says anything; 0 and "" where none does.
func turnOf(getenv func(string) string) (turn int, by string, err error) {
	names := localRanks[:]
	if getenv(torchMark) != "" {
		names = append([]string{ourLocalRank, torchLocalRank}, names...)
	}
	for _, name := range names {
		text := getenv(name)
		if text == "" {
			continue
		}
		if turn, err = strconv.Atoi(text); err != nil || turn < 0 {
			return 0, name, fmt.Errorf("%s=%q, want which rank of its host this is, from 0 on: it says which of several rails is taken", name, text)
		}
		return turn, name, nil
	}
	return 0, "", nil
}

// ownRail is w for the one rail that is this process's, and a line about it for people
// where there are several. That it cannot be used is an error of choose's, and no
// other rail is taken then.
func (w *wishes) ownRail() (own *wishes, why []string) {
	if len(w.rails) == 0 {
		return w, nil
	}
	one := *w
	r := w.rails[w.turn%len(w.rails)]
	one.device = r.device
	if r.port != 0 {
		one.port = r.port
	}
	if len(w.rails) > 1 {
		who := fmt.Sprintf("%s is %d", w.turnBy, w.turn)
		if w.turnBy == "" {
			who = "no variable says which rank of its host this is, so 0"
		}
		why = append(why, fmt.Sprintf("rails %v: %s, which takes %v", w.rails, who, r))
	}
	return &one, why
}

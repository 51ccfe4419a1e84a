package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/tutti-go/tutti/internal/vars"
)

// tfRoles are the roles in a TensorFlow cluster, in the order of their ranks. Here a parameter
// server is an ordinary rank. It comes last, so that the workers' ranks are contiguous from 0.
var tfRoles = [...]string{"chief", "master", "worker", "ps"}

// evaluator is the role of a task that reads checkpoints while the others train. As in TensorFlow,
// it is outside the cluster, so it is a job of one rank.
const evaluator = "evaluator"

// tfConfig reads TF_CONFIG, as training operators for TensorFlow set it. In TensorFlow, a TF_CONFIG
// without a cluster describes a single process, so this source does not apply to it.
func (f *finder) tfConfig() (*Job, error) {
	text, ok := f.get(vars.TFConfig)
	if !ok {
		return nil, nil
	}
	rank, role, peers, err := parseTFConfig(text)
	if err != nil {
		return nil, badVariable(unknown, vars.TFConfig, text, err.Error(),
			`give {"cluster":{"worker":["host:port",...]},"task":{"type":"worker","index":0}}, or unset it`)
	}
	if role == evaluator {
		j := newJob(vars.TFConfig)
		j.Size, j.LocalRank, j.LocalSize, j.Name, j.Role = 1, 0, 1, "tf."+evaluator, role
		return j, f.identity(j)
	}
	if len(peers) == 0 {
		return nil, nil
	}
	j := jobOfList(vars.TFConfig, "tf", rank, peers)
	j.Role = role
	return j, f.identity(j)
}

// A tfIndex is a number that some schedulers write as a JSON string.
type tfIndex int

// UnmarshalJSON accepts a number and a string.
func (i *tfIndex) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseUint(string(bytes.Trim(b, `"`)), 10, 31)
	if err != nil {
		return fmt.Errorf("task.index: got %.20s, want a number from 0 on", b)
	}
	*i = tfIndex(n)
	return nil
}

// parseTFConfig returns the task's rank and role, and the addresses of all ranks. If there is no
// cluster, or if the task is an evaluator, it returns no addresses. Ranks are numbered by role in
// the order of tfRoles, then by index, so that the chief is rank 0.
func parseTFConfig(text string) (rank int, role string, peers []string, err error) {
	if len(text) > maxText {
		return 0, "", nil, fmt.Errorf("has more than %d bytes", maxText)
	}
	var c struct {
		Cluster map[string]json.RawMessage `json:"cluster"`
		Task    *struct {
			Type  string   `json:"type"`
			Index *tfIndex `json:"index"`
		} `json:"task"`
	}
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return 0, "", nil, fmt.Errorf("is malformed (%w)", err)
	}
	if len(c.Cluster) == 0 {
		return 0, "", nil, nil
	}
	if c.Task == nil || c.Task.Index == nil {
		return 0, "", nil, errors.New("has a cluster, but does not say which task this is")
	}
	first, count, peers, err := tfCluster(c.Cluster, c.Task.Type)
	if err != nil {
		return 0, "", nil, err
	}
	if c.Task.Type == evaluator {
		return 0, evaluator, nil, nil
	}
	if i := int(*c.Task.Index); i < count {
		return first + i, c.Task.Type, peers, nil
	}
	return 0, "", nil, fmt.Errorf("is for task %d of %q, and the cluster has %d of them", *c.Task.Index, c.Task.Type, count)
}

// tfCluster returns the addresses in rank order, and which of them belong to the given role. It
// refuses unknown roles, because leaving them out would renumber the ranks.
func tfCluster(cluster map[string]json.RawMessage, role string) (first, count int, peers []string, err error) {
	for name := range cluster {
		if name != evaluator && !slices.Contains(tfRoles[:], name) {
			return 0, 0, nil, fmt.Errorf("has tasks of unknown type %.80q", name)
		}
	}
	if cluster["chief"] != nil && cluster["master"] != nil {
		return 0, 0, nil, errors.New("has both a chief and a master")
	}
	for _, name := range tfRoles {
		var some []string
		if raw := cluster[name]; raw != nil {
			if err := json.Unmarshal(raw, &some); err != nil {
				return 0, 0, nil, fmt.Errorf("does not list the addresses of %s as strings", name)
			}
		}
		if name == role {
			first, count = len(peers), len(some)
		}
		if peers = append(peers, some...); len(peers) > MaxRanks {
			return 0, 0, nil, fmt.Errorf("lists more than %d addresses", MaxRanks)
		}
	}
	return first, count, peers, checkPeers(peers)
}

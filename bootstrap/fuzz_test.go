package bootstrap

import (
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

func FuzzParseTFConfig(f *testing.F) {
	f.Add(`{"cluster":{"chief":["a:1"],"worker":["b:1","c:1"],"ps":["d:1"]},"task":{"type":"worker","index":1}}`)
	f.Add(`{"cluster":{"worker":["[::1]:80"]},"task":{"type":"worker","index":"0"},"environment":"cloud"}`)
	f.Add(`{"cluster":{},"task":{"type":"worker","index":0}}`)
	f.Add(`{"cluster":{"worker":{"0":"a:1"}},"task":{"type":"worker","index":-1}}`)
	f.Add(`{"cluster":{"worker":["a:1"]},"task":{"type":"evaluator","index":0}}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		rank, role, peers, err := parseTFConfig(text)
		if err == nil && len(peers) > 0 {
			checkFound(t, rank, peers)
			if !slices.Contains(tfRoles[:], role) {
				t.Errorf("got the role %q, want one of %v", role, tfRoles)
			}
		}
	})
}

func FuzzParseHosts(f *testing.F) {
	f.Add("a:1,b:2")
	f.Add(" [::1]:1 , 10.0.0.1:65535,")
	f.Add(",,")
	f.Fuzz(func(t *testing.T, text string) {
		if peers, err := parseHosts(text); err == nil {
			checkFound(t, 0, peers)
		}
	})
}

func checkFound(t *testing.T, rank int, peers []string) {
	t.Helper()
	if rank < 0 || rank >= len(peers) || len(peers) > MaxRanks {
		t.Errorf("rank %d of %d", rank, len(peers))
	}
	for _, p := range peers {
		if err := checkAddr(p); err != nil {
			t.Errorf("accepted %q: %v", p, err)
		}
	}
}

func FuzzFirstHost(f *testing.F) {
	f.Add("n[1-2,7],gpu[001-003]-ib,r[1-2]c[0-1]")
	f.Add("n[1")
	f.Fuzz(func(t *testing.T, list string) {
		host, err := firstHost(list)
		if err == nil && checkAddr(host+":1") != nil && checkAddr("["+host+"]:1") != nil {
			t.Errorf("%q: accepted %q", list, host)
		}
	})
}

// The fuzz test checks that for any values of the variables, Find returns either a job with
// consistent numbers or a *fault.Error.
func FuzzFind(f *testing.F) {
	f.Add("TUTTI_RANK=1\nTUTTI_SIZE=2\nTUTTI_ROOT=127.0.0.1:1\nTUTTI_LISTEN_FD=3")
	f.Add("TORCHELASTIC_RUN_ID=x\nRANK=1\nWORLD_SIZE=2\nMASTER_ADDR=h\nLOCAL_WORLD_SIZE=2\nLOCAL_RANK=0")
	f.Add("SLURM_STEP_ID=0\nSLURM_PROCID=1\nSLURM_STEP_NUM_TASKS=2\nSLURM_STEP_NODELIST=n[1-2]\nTUTTI_SECRET=00112233445566778899aabbccddeeff")
	f.Add("JOB_COMPLETION_INDEX=1\nWORLD_SIZE=2\nMASTER_ADDR=h")
	f.Add("TUTTI_HOSTS=a:1,b:1\nTUTTI_RANK=0\nTUTTI_SECRET=00\nTUTTI_LISTEN=[::1]:0\nTUTTI_BOOTSTRAP=hosts")
	f.Add("TUTTI_RANK=1\nTUTTI_SIZE=2\nTUTTI_ROOT=[::1]:1\nTUTTI_INTERFACE=^=lo,10.0.0.0/8\nTUTTI_ADVERTISE=[fd00::1]:1\nTUTTI_LISTEN=:1-2\nTUTTI_SECRET=00112233445566778899aabbccddeeff")
	f.Fuzz(func(t *testing.T, env string) {
		if strings.Contains(env, "SECRET_FILE") {
			// Reason: the content of this machine's files would decide the result.
			t.Skip("would read files of this machine")
		}
		j, err := finderOf(strings.Split(env, "\n")...).find(Options{})
		if err != nil {
			if _, ok := err.(*fault.Error); !ok {
				t.Errorf("%T is not *fault.Error", err)
			}
			return
		}
		if j.meeting != nil {
			return // Join completes the job
		}
		if j.Rank < 0 || j.Rank >= j.Size || len(j.Peers) > 0 && len(j.Peers) != j.Size || !plainName(j.Name) {
			t.Errorf("got %+v", j)
		}
		if j.Size > 1 && j.Root == "" && len(j.Peers) == 0 {
			t.Errorf("nobody can be reached: %+v", j)
		}
	})
}

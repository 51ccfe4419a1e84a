package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

func gidOf(index, roce int, addr string) gidInfo {
	return gidInfo{index: index, roce: roce, gid: netip.MustParseAddr(addr).As16()}
}

// host returns typical devices of a host: a port that is down, and GIDs of both RoCE versions
// and both address families.
func host() []deviceInfo {
	return []deviceInfo{
		{name: "mlx5_0", err: errors.New("open: permission denied")},
		{name: "mlx5_1", ports: []portInfo{{number: 1}, {number: 2, active: true}}},
		{name: "mlx5_2", ports: []portInfo{{number: 1, active: true, mtu: 5, gids: []gidInfo{
			gidOf(0, 1, "fe80::1"), gidOf(1, 2, "fe80::1"), gidOf(2, 1, "10.0.0.1"), gidOf(3, 2, "10.0.0.1"), gidOf(5, 2, "2001:db8::1"),
		}}}},
		{name: "mlx5_3", ports: []portInfo{{number: 1, active: true, mtu: 4, lid: 7, gids: []gidInfo{gidOf(0, 0, "fe80::2")}}}},
	}
}

func TestDeviceAndGIDAreSelectedByTheConfig(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string // a part of the selection, or of the error
	}{
		"the best":               {nil, "mlx5_2 port 1, GID 3, 10.0.0.1, RoCE v2, MTU 4096"},
		"IPv6 before fe80":       {map[string]string{"TUTTI_VERBS_GID_FAMILY": "ipv6"}, "mlx5_2 port 1, GID 5, 2001:db8::1, RoCE v2, MTU 4096"},
		"version 1":              {map[string]string{"TUTTI_VERBS_ROCE_VERSION": "1"}, "mlx5_2 port 1, GID 2, 10.0.0.1, RoCE v1, MTU 4096"},
		"an index":               {map[string]string{"TUTTI_VERBS_GID_INDEX": "1"}, "mlx5_2 port 1, GID 1, fe80::1, RoCE v2, MTU 4096"},
		"TensorFlow's names":     {map[string]string{"RDMA_DEVICE": "mlx5_2", "RDMA_GID_INDEX": "0"}, "mlx5_2 port 1, GID 0, fe80::1, RoCE v1, MTU 4096"},
		"ours before theirs":     {map[string]string{"RDMA_DEVICE": "mlx5_2", "TUTTI_VERBS_DEVICE": "mlx5_3"}, "mlx5_3 port 1, GID 0, fe80::2, InfiniBand, LID 7, MTU 2048"},
		"a port that is down":    {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_1", "TUTTI_VERBS_PORT": "1"}, "bring its network interface up"},
		"a port without GID":     {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_1", "TUTTI_VERBS_PORT": "2"}, "give its network interface an address"},
		"no such device":         {map[string]string{"TUTTI_VERBS_DEVICE": "mlx4_0"}, `want device "mlx4_0"`},
		"no such index":          {map[string]string{"TUTTI_VERBS_GID_INDEX": "9"}, "none of its 5 GIDs has the index"},
		"the first rail":         {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_2,mlx5_3"}, "mlx5_2 port 1, GID 3, 10.0.0.1, RoCE v2, MTU 4096"},
		"the second rail":        {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_2, mlx5_3:1", "TUTTI_LOCAL_RANK": "3"}, "mlx5_3 port 1, GID 0, fe80::2, InfiniBand, LID 7, MTU 2048"},
		"by Slurm's variable":    {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_2,mlx5_3", "SLURM_LOCALID": "1"}, "mlx5_3 port 1, GID 0, fe80::2, InfiniBand, LID 7, MTU 2048"},
		"by torchrun's in Slurm": {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_2,mlx5_3", "SLURM_LOCALID": "0", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}, "mlx5_3 port 1, GID 0, fe80::2, InfiniBand, LID 7, MTU 2048"},
		"a rail's other port":    {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_2:1,mlx5_2:2", "TUTTI_LOCAL_RANK": "1"}, "want port 2"},
		"a rail that is down":    {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_2,mlx5_1:1", "TUTTI_LOCAL_RANK": "1"}, "bring its network interface up"},
		"no right to open one":   {map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_0"}, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := readConfig(func(n string) string { return c.env[n] })
			if err != nil {
				t.Fatal(err)
			}
			best, why, err := choose(host(), w)
			if err == nil && best.String() != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v; want %q; because\n%s", best, err, c.want, strings.Join(why, "\n"))
			}
			for _, d := range host() {
				if !strings.Contains(strings.Join(why, "\n"), d.name) {
					t.Errorf("nothing is said of %s", d.name)
				}
			}
		})
	}
	if _, _, err := choose(nil, &config{}); err == nil || !strings.Contains(err.Error(), "rdma link add") {
		t.Errorf("without a device: %v", err)
	}
}

// The ranks of a host must select its ports in turn. The explanation of each rank must say which
// port the rank has selected, and why.
func TestRanksOfAHostSelectPortsInTurn(t *testing.T) {
	for rank, want := range []string{"mlx5_2", "mlx5_3", "mlx5_2", "mlx5_3"} {
		env := map[string]string{"TUTTI_VERBS_DEVICE": "mlx5_2,mlx5_3", "TUTTI_LOCAL_RANK": strconv.Itoa(rank)}
		w, err := readConfig(func(n string) string { return env[n] })
		if err != nil {
			t.Fatal(err)
		}
		best, why, err := choose(host(), w)
		if err != nil || best.name != want {
			t.Errorf("rank %d: got %v, %v, want %s", rank, best, err, want)
		}
		if want_ := fmt.Sprintf("ports [mlx5_2 mlx5_3]: TUTTI_LOCAL_RANK is %d, which selects %s", rank, want); why[0] != want_ {
			t.Errorf("rank %d: got %q, want %q", rank, why[0], want_)
		}
	}
}

func TestInvalidVariableIsNamedInTheError(t *testing.T) {
	for name, value := range map[string]string{
		"RDMA_DEVICE": "mlx5_0:,mlx5_1", "RDMA_QP_MTU": "1500", "TUTTI_LOCAL_RANK": "first", "SLURM_LOCALID": "-1",
		"TUTTI_VERBS_PORT": "first", "TUTTI_VERBS_GID_FAMILY": "ipx", "TUTTI_VERBS_MTU": "1500", "TUTTI_VERBS_RETRIES": "7",
		"RDMA_QP_TIMEOUT": "99", "TUTTI_VERBS_DEPTH": "2", "TUTTI_VERBS_FRESH": "yes", "RDMA_QP_SL": "16",
		"TUTTI_VERBS_DEVICE": "mlx5_0:,mlx5_1",
	} {
		_, err := readConfig(func(n string) string {
			switch n {
			case name:
				return value
			case "RDMA_DEVICE": // several devices, so that the rank matters
				return "mlx5_0,mlx5_1"
			}
			return ""
		})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s: got %v", name, value, err)
		}
	}
}

func TestConfigCompletesOptions(t *testing.T) {
	env := map[string]string{"RDMA_QP_QUEUE_DEPTH": "4096", "TUTTI_VERBS_RING": "-1", "TUTTI_VERBS_BUFFER": "512",
		"TUTTI_VERBS_FRESH": "1", "RDMA_QP_RETRY_COUNT": "7"}
	w, err := readConfig(func(n string) string { return env[n] })
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Buffer: 1024}
	w.apply(&o)
	if o.Depth != maxDepth || o.Ring != -1 || o.Buffer != 1024 || !o.Fresh || w.retries != 6 {
		t.Errorf("got %+v and %d retries", o, w.retries)
	}
}

func TestNetworksAreEqualWhereDevicesShouldReachEachOther(t *testing.T) {
	on := func(roce int, addr string) string {
		return (&selection{gid: gidInfo{roce: roce, gid: netip.MustParseAddr(addr).As16()}}).network()
	}
	for name, c := range map[string]struct {
		here, there string
		equal       bool
	}{
		"routed IPv4":         {on(2, "::ffff:10.0.0.1"), on(2, "::ffff:192.168.7.7"), true},
		"routed IPv6":         {on(2, "fd00::1"), on(2, "2001:db8::1"), true},
		"link-local":          {on(2, "fe80::1"), on(2, "fd00::1"), false},
		"both link-local":     {on(2, "fe80::1"), on(2, "fe80::2"), true},
		"two families":        {on(2, "::ffff:10.0.0.1"), on(2, "fd00::1"), false},
		"two versions":        {on(1, "::ffff:10.0.0.1"), on(2, "::ffff:10.0.0.1"), false},
		"one subnet":          {on(0, "fe80::2:c903:1"), on(0, "fe80::2:c903:2"), true},
		"two subnets":         {on(0, "fe80::1"), on(0, "fec0:0:0:1::1"), false},
		"InfiniBand and RoCE": {on(0, "fe80::1"), on(1, "fe80::1"), false},
	} {
		if (c.here == c.there) != c.equal || strings.ContainsAny(c.here+c.there, ";=") {
			t.Errorf("%s: got %q and %q, equal: want %v", name, c.here, c.there, c.equal)
		}
	}
}

// New queues must go to the waiter with the fewest queues. TestDeviceSpreadsItsQueuesOverItsWaiters
// tests this with a device.
func TestNewQueuesGoToTheLeastLoadedWaiter(t *testing.T) {
	load := make([]int, 3)
	for range 7 {
		load[leastLoaded(load)]++
	}
	load[2] -= 2 // two pairs are closed
	if got := leastLoaded(load); got != 2 || load[0] != 3 || load[1] != 2 {
		t.Errorf("waiter %d of %v is next, want 2 of [3 2 0]", got, load)
	}
}

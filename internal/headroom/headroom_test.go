package headroom

import (
	"math"
	"os"
	"testing"
	"testing/fstest"
)

func TestAvailableIsTheLeastReported(t *testing.T) {
	const mem = "MemTotal: 16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		left  int64
		known bool
	}{
		"nothing to read": {nil, math.MaxInt64, false},
		"a machine":       {map[string]string{"proc/meminfo": mem}, 8 << 20, true},
		"nonsense":        {map[string]string{"proc/meminfo": "MemAvailable: much kB\n", "proc/self/cgroup": "0\n::\n0::/x"}, math.MaxInt64, false},
		"a group without limit": {map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5000\n"}, 8 << 20, true},
		"a container": {map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "1000\n"}, 2000, true},
		"a container that has read files": {map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "2900\n",
			"sys/fs/cgroup/memory.stat": "anon 100\ninactive_file 2500\nactive_file 300\n"}, 2900, true},
		"a full container": {map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "3001\n"}, 0, true},
		"a service within a slice": {map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/a.slice/b.service\n",
			"sys/fs/cgroup/a.slice/memory.max": "900\n", "sys/fs/cgroup/a.slice/memory.current": "800\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max": "700\n", "sys/fs/cgroup/a.slice/b.service/memory.current": "500\n"}, 100, true},
		"version 1": {map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "9:cpu:/c\n4:memory:/c/job\n0::/\n",
			"sys/fs/cgroup/memory/c/job/memory.limit_in_bytes": "4000\n", "sys/fs/cgroup/memory/c/job/memory.usage_in_bytes": "1000\n",
			"sys/fs/cgroup/memory/c/job/memory.stat": "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 100\n"}, 3600, true},
		"version 1 without limit": {map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n"}, 8 << 20, true},
		"only the group tells": {map[string]string{"proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "1000\n"}, 2000, true},
	} {
		t.Run(name, func(t *testing.T) {
			system := make(fstest.MapFS)
			for file, text := range c.files {
				system[file] = &fstest.MapFile{Data: []byte(text)}
			}
			if left, known := available(system); left != c.left || known != c.known {
				t.Errorf("got %d, %v; want %d, %v", left, known, c.left, c.known)
			}
		})
	}
}

func TestCheckRefusesMoreThanIsAvailable(t *testing.T) {
	_, known := available(os.DirFS("/"))
	if err := Check(math.MaxInt64); (err != nil) != known {
		t.Errorf("what is left is known: %v; got %v", known, err)
	}
	if err := Check(0); err != nil {
		t.Errorf("nothing at all is refused: %v", err)
	}
}

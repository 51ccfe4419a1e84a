// Package headroom reports how much memory this process may still allocate. It is meant for memory
// that the kernel grants without a check, such as pages of a memfd and pages pinned for a device.
// If such memory exceeds a limit, the kernel later kills processes. The package reads Linux's
// files, and does not know what the memory is for.
//
// The available memory is a minimum: of what the machine has available, and of what each control
// group of the process has left, in version 2 (cgroups(7)) or in the memory controller of version
// 1. Pages that cache files do not count as used, because the kernel drops them for other uses.
package headroom

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Check returns nil if this process may allocate the given number of bytes at once. The limit is
// half of the available memory, so that other processes can allocate meanwhile. The error says how
// much is available, and what to do. If no file reports the available memory, Check returns nil.
// The check is a snapshot, so the kernel may still kill the process, but that is unlikely.
func Check(bytes int64) error {
	if left, known := available(os.DirFS("/")); known && bytes > left/2 {
		return fmt.Errorf("memory: got a request for %d bytes, want at most %d, half of what this host or container has left: allocate less, or raise the container's limit", bytes, left/2)
	}
	return nil
}

// available returns the smallest amount of available memory, in bytes, that any file of the system
// reports. known is false if no file reports one.
func available(system fs.FS) (left int64, known bool) {
	left = math.MaxInt64
	if free, ok := field(system, "proc/meminfo", "MemAvailable:"); ok {
		left, known = free<<10, true // the file's unit is KiB
	}
	for _, g := range groups(system) {
		if n, ok := g.available(system); ok {
			left, known = min(left, n), true
		}
	}
	return left, known
}

// A group is a control group: its folder, and the names of its files. The field total is the prefix
// of the counters that include the groups below the group.
type group struct{ dir, limit, used, total string }

// groups returns the control groups of the process and the groups around them. It leaves out groups
// whose files the process cannot see, as in most containers.
func groups(system fs.FS) (all []group) {
	text, _ := fs.ReadFile(system, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		// The path follows the number of the hierarchy.
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, own, _ := strings.Cut(rest, ":")
		g := group{dir: "sys/fs/cgroup", limit: "memory.max", used: "memory.current"}
		switch controllers {
		case "":
		case "memory":
			g = group{dir: "sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", total: "total_"}
		default:
			continue
		}
		root := g.dir
		for at := path.Clean("/" + own); ; at = path.Dir(at) {
			g.dir = path.Join(root, at)
			all = append(all, g)
			if at == "/" {
				break
			}
		}
	}
	return all
}

// available returns how many bytes a group may still allocate: its limit minus its use. Pages that
// cache files do not count as used. If the group has no limit or reports none, ok is false.
func (g group) available(system fs.FS) (int64, bool) {
	limit, limited := number(system, path.Join(g.dir, g.limit))
	used, ok := number(system, path.Join(g.dir, g.used))
	if !limited || !ok {
		return 0, false
	}
	for _, cache := range []string{"inactive_file", "active_file"} {
		n, _ := field(system, path.Join(g.dir, "memory.stat"), g.total+cache)
		used -= n
	}
	return max(limit-max(used, 0), 0), true
}

// number returns the number in a file. If the file has no number, as with "max", ok is false.
func number(system fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(system, name)
	n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && bad == nil
}

// field returns the number after a name, in a file with one name and number per line.
func field(system fs.FS, file, name string) (int64, bool) {
	text, _ := fs.ReadFile(system, file)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// Package headroom tells how much memory this process may still fill, where the kernel
// does not refuse what is too much but kills processes: pages of a memfd, or pages that
// are pinned for a device. It knows Linux, whose files it reads, and not what the memory
// is for.
//
// What is left is the least of what the machine has available and what each control
// group that the process is in has left, of version 2 (cgroups(7)) or of version 1's
// memory controller. Pages of files that were read do not count as used: the kernel drops
// them for others.
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

// Check is nil if so many bytes may be taken at once: at most half of what is left, so
// that others can take some meanwhile. Where nobody tells what is left, anything may.
func Check(bytes int64) error {
	if left, known := available(os.DirFS("/")); known && bytes > left/2 {
		return fmt.Errorf("at most half of the memory that is left, which is %d bytes now, is given out at once: allocate less, or raise the limit of the container", left)
	}
	return nil
}

// available is what is left by the files of a system, if any of them tells.
func available(system fs.FS) (left int64, known bool) {
	left = math.MaxInt64
	if free, ok := field(system, "proc/meminfo", "MemAvailable:"); ok {
		left, known = free<<10, true // it is in KiB
	}
	for _, g := range groups(system) {
		if n, ok := g.available(system); ok {
			left, known = min(left, n), true
		}
	}
	return left, known
}

// A group is a control group, by its folder and the names of its files; total begins the
// names of what counts for those within it, too.
type group struct{ dir, limit, used, total string }

// groups are those that the process is in, and those around them; what the process
// cannot see of them, as in most containers, is left out.
func groups(system fs.FS) (all []group) {
	text, _ := fs.ReadFile(system, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":") // behind the hierarchy's number
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

// available is what a group has left; false where it has no limit, or does not tell.
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

// number is what a file holds; false where that is no number, as "max" is none.
func number(system fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(system, name)
	n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && bad == nil
}

// field is the number behind a name, in a file that has one of each per line.
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

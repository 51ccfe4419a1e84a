package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/tutti-go/tutti/internal/version"
)

// collect returns the facts of this host. It looks up all names at the same time.
func collect(ctx context.Context, names []string) *Facts {
	system := os.DirFS("/")
	f := &Facts{
		Version: version.Version, Commit: version.Commit(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Interfaces: interfaces(), Lookups: make([]Lookup, len(names)),
		OnlineCores: onlineCores(system), Quota: quota(system), Devices: devices(system),
	}
	f.Hostname, _ = os.Hostname() // on an error, the report still has the user's name for the host
	addLimits(f)
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			l := Lookup{Name: name}
			addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
			if err != nil {
				l.Error = err.Error()
			}
			for _, a := range addrs {
				l.Addrs = append(l.Addrs, a.Unmap())
			}
			f.Lookups[i] = l
		})
	}
	all.Wait()
	return f
}

// interfaces returns the interfaces that are up.
func interfaces() (up []Interface) {
	all, _ := net.Interfaces() // on an error, the report has no interfaces, and Diagnose reports that
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		n := Interface{Name: i.Name, MTU: i.MTU, Speed: speed(os.DirFS("/"), i.Name, i.Index)}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !(p.Addr().Is6() && p.Addr().IsLinkLocalUnicast()) {
				n.Prefixes = append(n.Prefixes, p)
			}
		}
		up = append(up, n)
	}
	return up
}

// speed returns the speed of an interface in Mb/s, or 0 if the kernel does not report it. In a
// network namespace, /sys may describe the interfaces of another namespace. Their indexes differ,
// so speed compares the index.
func speed(system fs.FS, name string, index int) int {
	dir := path.Join("sys/class/net", name)
	if number(system, dir+"/ifindex") != index {
		return 0
	}
	return max(number(system, dir+"/speed"), 0)
}

// interfaceOf returns the interface that has an address, or the zero Interface.
func interfaceOf(all []Interface, a netip.Addr) Interface {
	for _, i := range all {
		for _, p := range i.Prefixes {
			if p.Addr() == a {
				return i
			}
		}
	}
	return Interface{}
}

// text returns the content of a file without space around it; "" if it cannot be read.
func text(system fs.FS, name string) string {
	b, _ := fs.ReadFile(system, name)
	return strings.TrimSpace(string(b))
}

// number returns the number in a file; 0 if there is none.
func number(system fs.FS, name string) int {
	n, _ := strconv.Atoi(text(system, name))
	return n
}

// onlineCores returns how many cores the host has. The kernel's list has the form 0-3,8.
func onlineCores(system fs.FS) (n int) {
	for part := range strings.SplitSeq(text(system, "sys/devices/system/cpu/online"), ",") {
		var first, last int
		switch k, _ := fmt.Sscanf(part, "%d-%d", &first, &last); k {
		case 1:
			n++
		case 2:
			n += last - first + 1
		}
	}
	if n == 0 {
		return runtime.NumCPU()
	}
	return n
}

// quota returns how many processors the control groups of this process may use at a time, or 0 if
// there is no limit. The limits of the groups above the process's own group apply, too. Version 2
// has quota and period in cpu.max, and version 1 has a file for each.
func quota(system fs.FS) (least float64) {
	for line := range strings.Lines(text(system, "proc/self/cgroup")) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, own, _ := strings.Cut(rest, ":")
		root := "sys/fs/cgroup"
		if controllers != "" {
			root = "sys/fs/cgroup/cpu"
			if !strings.Contains(","+controllers+",", ",cpu,") {
				continue
			}
		}
		for at := path.Clean("/" + own); ; at = path.Dir(at) {
			dir := path.Join(root, at)
			limits := text(system, dir+"/cpu.max")
			if controllers != "" {
				limits = text(system, dir+"/cpu.cfs_quota_us") + " " + text(system, dir+"/cpu.cfs_period_us")
			}
			var time, period float64
			if n, _ := fmt.Sscan(limits, &time, &period); n == 2 && time > 0 && period > 0 && (least == 0 || time/period < least) {
				least = time / period
			}
			if at == "/" {
				break
			}
		}
	}
	return least
}

// devices returns the ports of the RDMA devices that the kernel lists. It reads /sys, so it also
// works in a program that was built without verbs.
func devices(system fs.FS) (all []RDMAPort) {
	const class = "sys/class/infiniband"
	names, _ := fs.ReadDir(system, class)
	for _, d := range names {
		ports, _ := fs.ReadDir(system, path.Join(class, d.Name(), "ports"))
		for _, p := range ports {
			dir := path.Join(class, d.Name(), "ports", p.Name())
			port, _ := strconv.Atoi(p.Name())
			_, state, _ := strings.Cut(text(system, dir+"/state"), ": ")
			device := RDMAPort{Name: d.Name(), Port: port, State: state, Rate: text(system, dir+"/rate"), Network: text(system, dir+"/link_layer")}
			gids, _ := fs.ReadDir(system, dir+"/gids")
			for i := range len(gids) {
				index := strconv.Itoa(i)
				a, err := netip.ParseAddr(text(system, dir+"/gids/"+index))
				if err != nil || a.IsUnspecified() {
					continue
				}
				gid := index + ": " + a.Unmap().String()
				if kind := text(system, dir+"/gid_attrs/types/"+index); kind != "" {
					gid += ", " + kind
				}
				device.GIDs = append(device.GIDs, gid)
			}
			all = append(all, device)
		}
	}
	return all
}

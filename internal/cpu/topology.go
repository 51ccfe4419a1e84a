package cpu

import (
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
)

// A Thread is one hardware thread of this host.
type Thread struct {
	ID     int // its number in the kernel
	Core   int // the lowest ID among the threads of its core
	Socket int
	NUMA   int
}

// Topology returns the hardware threads that this process may use, in the order of their numbers.
// Where the system does not describe them, each of runtime.NumCPU threads is a core of one socket.
func Topology() []Thread {
	allowed, sys := allowedThreads()
	if allowed == nil {
		for id := range runtime.NumCPU() {
			allowed = append(allowed, id)
		}
	}
	return readTopology(sys, allowed)
}

// readTopology reads the cores, sockets and NUMA nodes of hardware threads from a file system like
// Linux's /sys, which may be nil. A thread without a description is a core of socket 0.
func readTopology(sys fs.FS, ids []int) []Thread {
	threads := make([]Thread, len(ids))
	numa := make(map[int]int)
	if sys != nil {
		nodes, _ := fs.Glob(sys, "devices/system/node/node[0-9]*/cpulist") // the pattern is valid
		for _, file := range nodes {
			var node int
			if _, err := fmt.Sscanf(file, "devices/system/node/node%d/", &node); err != nil {
				continue
			}
			for _, id := range readList(sys, file) {
				numa[id] = node
			}
		}
	}
	for i, id := range ids {
		threads[i] = Thread{ID: id, Core: id, NUMA: numa[id]}
		if sys == nil {
			continue
		}
		dir := fmt.Sprintf("devices/system/cpu/cpu%d/topology/", id)
		if siblings := readList(sys, dir+"thread_siblings_list"); len(siblings) > 0 {
			threads[i].Core = siblings[0]
		}
		// A virtual machine may have -1 in place of a number.
		if socket := readList(sys, dir+"physical_package_id"); len(socket) > 0 {
			threads[i].Socket = socket[0]
		}
	}
	return threads
}

// maxThread bounds the numbers in a list, and so the length of a list.
const maxThread = 1 << 16

// readList reads a list of numbers such as 0-3,8. It returns nil if there is no such list.
func readList(sys fs.FS, file string) (ids []int) {
	text, err := fs.ReadFile(sys, file)
	if err != nil {
		return nil
	}
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		lo, err := strconv.Atoi(first)
		hi := lo
		if isRange && err == nil {
			hi, err = strconv.Atoi(last)
		}
		if err != nil || lo < 0 || hi >= maxThread {
			return nil
		}
		for id := lo; id <= hi; id++ {
			ids = append(ids, id)
		}
	}
	return ids
}

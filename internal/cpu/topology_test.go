package cpu

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/fstest"
)

func TestReadTopology(t *testing.T) {
	// Two sockets of two cores of two threads; the second threads have the higher numbers.
	sys := fstest.MapFS{
		"devices/system/node/node0/cpulist":   {Data: []byte("0-1,4-5\n")},
		"devices/system/node/node1/cpulist":   {Data: []byte("2-3,6-7\n")},
		"devices/system/node/nodeX/cpulist":   {Data: []byte("0\n")},
		"devices/system/node/node2/cpulist":   {Data: []byte("\n")}, // memory without processors
		"devices/system/cpu/cpu9/topology/x":  {Data: []byte("\n")},
		"devices/system/cpu/cpu10/topology/x": {Data: []byte("\n")},
	}
	for id := range 8 {
		dir := fmt.Sprintf("devices/system/cpu/cpu%d/topology/", id)
		sys[dir+"thread_siblings_list"] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d,%d\n", id%4, id%4+4)}
		sys[dir+"physical_package_id"] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d\n", id%4/2)}
	}
	sys["devices/system/cpu/cpu9/topology/physical_package_id"] = &fstest.MapFile{Data: []byte("-1\n")}
	sys["devices/system/cpu/cpu9/topology/thread_siblings_list"] = &fstest.MapFile{Data: []byte("9-999999999\n")}
	got := readTopology(sys, []int{1, 3, 6, 9})
	want := []Thread{{ID: 1, Core: 1}, {ID: 3, Core: 3, Socket: 1, NUMA: 1}, {ID: 6, Core: 2, Socket: 1, NUMA: 1}, {ID: 9, Core: 9}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := readTopology(nil, []int{5}), []Thread{{ID: 5, Core: 5}}; !slices.Equal(got, want) {
		t.Errorf("without a description: got %v, want %v", got, want)
	}
}

func TestTopologyHasTheThreadsOfThisProcess(t *testing.T) {
	if got := len(Topology()); got != runtime.NumCPU() {
		t.Errorf("got %d threads, want %d", got, runtime.NumCPU())
	}
}

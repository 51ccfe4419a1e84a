// Command verbsinfo says which of this host's RDMA devices, ports and GIDs the verbs
// transport would take, and why not the others, with the variables of its
// environment. It ends with status 1, and the remedy, where there is none to take.
//
//	$ verbsinfo
//	rxe0 port 1, GID 1, 10.99.0.1, RoCE v2, MTU 4096: taken
//	rxe0 port 1, GID 0, fe80::24d3:8cff:fe02:1: the one taken is better, or comes first
//	memory that may be locked: 67108864 bytes, which is little; see docs/verbs.md
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/tutti-go/tutti/transport/verbs"
)

func main() { os.Exit(run(os.Stdout, os.Stderr)) }

func run(out, problems io.Writer) int {
	lines, err := verbs.Explain()
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	if line := lockable(); line != "" {
		fmt.Fprintln(out, line)
	}
	if err != nil {
		fmt.Fprintln(problems, "verbsinfo:", err)
		return 1
	}
	return 0
}

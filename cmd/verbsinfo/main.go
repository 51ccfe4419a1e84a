// Command verbsinfo lists this host's RDMA devices, ports and GIDs. It says which of them the verbs
// transport would select under the current environment variables, and for each of the others why
// not. If there is none to select, verbsinfo exits with status 1 and prints the remedy.
//
//	$ verbsinfo
//	rxe0 port 1, GID 1, 10.99.0.1, RoCE v2, MTU 4096: selected
//	rxe0 port 1, GID 0, fe80::24d3:8cff:fe02:1: the selected one is better, or precedes it
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

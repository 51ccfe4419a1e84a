// Command tuttirun starts the ranks of a job on this host and on others, and ends them together.
// Its options resemble mpirun's:
//
//	tuttirun -np 4 ./program arguments
//
// tuttirun --help lists the options; package launch documents the behaviour.
package main

import (
	"os"

	"github.com/tutti-go/tutti/launch"
)

func main() {
	os.Exit(launch.Main(os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

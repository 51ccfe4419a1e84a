// Gen writes the vector kernels of package vector: for each instruction set the
// assembly, its declarations, and the table of which operator and element type
// each function serves. It writes the assembly of package cpu as well.
//
//	go run . [-check] <folder of package vector> <folder of package cpu>
//
// With -check it writes nothing, and fails if a file differs from what it would write. kernels.go
// lists the kernels, one row each. loop.go generates the code around a kernel: loads, loops, tails
// and stores. stream.go generates the copy of package cpu.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// by is the name in the first line of each generated file.
const by = "reduce/internal/vector/gen (make generate)"

func main() {
	check := flag.Bool("check", false, "compare with the files instead of writing them")
	flag.Parse()
	if flag.NArg() != 2 {
		fail(fmt.Errorf("usage: gen [-check] <folder of package vector> <folder of package cpu>"))
	}
	for _, l := range []level{avx2, avx512} {
		files, err := generate(l)
		writeOrCompareAll(flag.Arg(0), files, err, *check)
	}
	files, err := generateStream(avx2)
	writeOrCompareAll(flag.Arg(1), files, err, *check)
}

// writeOrCompareAll writes or compares the files of one folder.
func writeOrCompareAll(folder string, files map[string][]byte, err error, check bool) {
	if err != nil {
		fail(err)
	}
	for name, text := range files {
		if err := writeOrCompare(filepath.Join(folder, name), text, check); err != nil {
			fail(err)
		}
	}
}

// writeOrCompare writes the file or, with check, compares it with text.
func writeOrCompare(path string, text []byte, check bool) error {
	if !check {
		return os.WriteFile(path, text, 0o644)
	}
	got, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(got, text) {
		err = fmt.Errorf("%s is not what the generator writes: run make generate", path)
	}
	return err
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "gen:", err)
	os.Exit(1)
}

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sources holds the peers' programs, so that the command needs no checkout.
//
//go:embed src
var sources embed.FS

// A recipe says how a peer's program is compiled, and which packages provide its compiler and
// library.
type recipe struct {
	name, compiler, source string
	libs                   []string
	packages               string // the names of Debian packages
}

func recipes() []recipe {
	return []recipe{
		{"openmpi", "mpicc.openmpi", "mpi_bench.c", []string{"-lm"}, "libopenmpi-dev openmpi-bin"},
		{"mpich", "mpicc.mpich", "mpi_bench.c", []string{"-lm"}, "libmpich-dev mpich"},
		{"gloo", "g++", "gloo_bench.cc", []string{"-lgloo", "-lpthread"}, "g++ libgloo-dev"},
	}
}

// buildPeers compiles the peers' programs that have not been compiled yet, and returns all programs
// by name. It omits a peer that cannot be built, and logs the reason.
func buildPeers(ctx context.Context, log io.Writer) map[string]string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	built := make(map[string]string)
	for _, r := range recipes() {
		program, err := r.build(ctx, filepath.Join(cache, "tutti-peers"))
		if err != nil {
			fmt.Fprintf(log, "# %s is left out: %v\n#   on Debian: apt-get install %s\n", r.name, err, r.packages)
			continue
		}
		built[r.name] = program
	}
	return built
}

// build compiles the program into dir, unless it is there already, and returns its path. The file's
// name has a hash of the source and of the command. The file is renamed when it is complete, so
// that no incomplete file is ever run.
func (r recipe) build(ctx context.Context, dir string) (string, error) {
	source, err := sources.ReadFile("src/" + r.source)
	if err != nil {
		return "", err
	}
	compiler, err := exec.LookPath(r.compiler)
	if err != nil {
		return "", fmt.Errorf("got no %s in PATH", r.compiler)
	}
	args := append([]string{"-O3", "-march=native", "-x", language(r.source), "-", "-x", "none"}, r.libs...)
	mark := sha256.Sum256(append(source, strings.Join(append(args, compiler), " ")...))
	program := filepath.Join(dir, fmt.Sprintf("%s-%x", r.name, mark[:6]))
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	fresh := fmt.Sprintf("%s.%d", program, os.Getpid())
	defer os.Remove(fresh)
	cmd := exec.CommandContext(ctx, compiler, append([]string{"-o", fresh}, args...)...)
	cmd.Stdin = bytes.NewReader(source)
	if text, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return "", fmt.Errorf("%s: %w: %s", r.compiler, err, lines[0])
	}
	return program, os.Rename(fresh, program)
}

// language returns the name that compilers use for the language of a source.
func language(name string) string {
	if filepath.Ext(name) == ".cc" {
		return "c++"
	}
	return "c"
}

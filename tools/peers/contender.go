package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A contender runs the whole sweep once. Its function run returns a map from the size in bytes to
// the time in microseconds. If run returns an error, the map may contain only some sizes.
type contender struct {
	name    string
	run     func(ctx context.Context) (map[int]float64, error)
	version bool // another version of tutti, which must not fail
}

// contenders returns tutti, if it is built, and the peers that can run the benchmark.
func (c *benchmark) contenders(built map[string]string, log io.Writer) []contender {
	var all []contender
	if path := filepath.Join(c.bin, "tuttirun"); exists(path) {
		all = append(all, c.own())
	} else {
		fmt.Fprintf(log, "# there is no %s, so only the peers run; run make build first\n", path)
	}
	if p := built["openmpi"]; p != "" {
		all = append(all, c.openMPI(p))
	}
	if p := built["mpich"]; p != "" {
		all = append(all, c.mpich(p)...)
	}
	if p := built["gloo"]; p != "" && c.wire == "tcp" {
		for _, kind := range glooKinds(c.op) {
			all = append(all, contender{name: "gloo-" + kind, run: func(ctx context.Context) (map[int]float64, error) {
				return c.gloo(ctx, p, kind)
			}})
		}
	}
	return all
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// sweep returns the sizes and the time as arguments of the peers' programs.
func (c *benchmark) sweep() []string {
	return []string{strconv.Itoa(c.min), strconv.Itoa(c.max), strconv.FormatFloat(c.time, 'g', -1, 64)}
}

// own returns this version of tutti.
func (c *benchmark) own() contender {
	return contender{name: ours, run: func(ctx context.Context) (map[int]float64, error) { return c.tutti(ctx, c.bin) }}
}

// tutti runs the tuttibench in a folder under the tuttirun in the same folder.
func (c *benchmark) tutti(ctx context.Context, bin string) (map[int]float64, error) {
	op, model, _ := strings.Cut(c.op, ":")
	args := []string{"-np", strconv.Itoa(c.np), filepath.Join(bin, "tuttibench"), "-op", op, "-transport", c.wire,
		"-time", time.Duration(c.time * float64(time.Second)).String(), "-format", "csv"}
	if model != "" {
		args = append(args, "-model", model)
	} else {
		args = append(args, "-min", strconv.Itoa(c.min), "-max", strconv.Itoa(c.max))
	}
	out, err := output(ctx, nil, filepath.Join(bin, "tuttirun"), args...)
	if err != nil {
		return nil, err
	}
	return readBench(out)
}

// readBench parses tuttibench's CSV. A wrong result is an error. If the rows are those of a model's
// gradients, only the rows coordinator and negotiation count.
func readBench(text string) (map[int]float64, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.Comment = '#'
	lines, err := r.ReadAll()
	if err != nil || len(lines) == 0 {
		return nil, errors.Join(errors.New("tuttibench printed no CSV"), err)
	}
	column := make(map[string]int)
	for i, name := range lines[0] {
		column[name] = i + 1
	}
	op, size, median, wrong := column["op"]-1, column["bytes"]-1, column["median_us"]-1, column["wrong"]-1
	if op < 0 || size < 0 || median < 0 || wrong < 0 {
		return nil, fmt.Errorf("tuttibench's columns are %v", lines[0])
	}
	got := make(map[int]float64)
	for _, l := range lines[1:] {
		if l[wrong] != "0" {
			return nil, fmt.Errorf("%s elements are wrong at %s bytes", l[wrong], l[size])
		}
		n, err1 := strconv.Atoi(l[size])
		us, err2 := strconv.ParseFloat(l[median], 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		if l[op] != "separate" && l[op] != "whole" {
			got[n] = us
		}
	}
	return got, nil
}

// openMPI runs Open MPI with its defaults. Over tcp it runs without Open MPI's shared memory.
func (c *benchmark) openMPI(program string) contender {
	args := []string{"-np", strconv.Itoa(c.np), "--oversubscribe"}
	if c.wire == "tcp" {
		args = append(args, "--mca", "btl", "tcp,self")
	}
	args = append(append(args, program, c.op), c.sweep()...)
	env := []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
	return contender{name: "openmpi", run: func(ctx context.Context) (map[int]float64, error) {
		return peer(ctx, env, "mpirun.openmpi", args...)
	}}
}

// mpich runs MPICH. Over shm it returns two contenders: MPICH with its default, the shared memory
// of ch4, and MPICH with the shared memory of UCX. Over tcp it returns MPICH with the TCP of UCX.
func (c *benchmark) mpich(program string) []contender {
	args := append([]string{"-np", strconv.Itoa(c.np), program, c.op}, c.sweep()...)
	with := func(name string, env ...string) contender {
		return contender{name: name, run: func(ctx context.Context) (map[int]float64, error) {
			return peer(ctx, env, "mpirun.mpich", args...)
		}}
	}
	if c.wire == "tcp" {
		return []contender{with("mpich", "MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self")}
	}
	return []contender{with("mpich"), with("mpich-ucx", "MPIR_CVAR_NOLOCAL=1")}
}

// glooKinds returns the algorithms of gloo_bench for an operation that are fast enough to be
// compared.
func glooKinds(op string) []string {
	switch op {
	case "allreduce":
		return []string{"ring", "halving"}
	case "broadcast":
		return []string{"broadcast"}
	}
	return nil
}

// gloo runs a program of gloo. It starts the ranks itself, because gloo has no launcher.
func (c *benchmark) gloo(ctx context.Context, program, kind string) (map[int]float64, error) {
	store, err := os.MkdirTemp("", "tutti-gloo-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(store)
	ctx, cancel := context.WithCancel(ctx)
	command := func(rank int) []string {
		return append([]string{strconv.Itoa(rank), strconv.Itoa(c.np), store, kind}, c.sweep()...)
	}
	ended := make(chan error, c.np)
	for rank := 1; rank < c.np; rank++ {
		go func() {
			_, err := output(ctx, nil, program, command(rank)...)
			ended <- err
		}()
	}
	got, err := peer(ctx, nil, program, command(0)...)
	if err != nil {
		cancel() // ends the other ranks, which would wait for the failed rank
	}
	for range c.np - 1 {
		if e := <-ended; err == nil {
			err = e
		}
	}
	cancel()
	return got, err
}

// figures matches the results in what the peers' programs print.
var figures = regexp.MustCompile(`bytes=(\d+) median_us=([\d.]+)`)

// peer runs a peer's program and reads its figures. If the program fails, peer still returns the
// figures that it printed before.
func peer(ctx context.Context, env []string, program string, args ...string) (map[int]float64, error) {
	out, err := output(ctx, env, program, args...)
	got := make(map[int]float64)
	for _, m := range figures.FindAllStringSubmatch(out, -1) {
		n, err1 := strconv.Atoi(m[1])
		us, err2 := strconv.ParseFloat(m[2], 64)
		if err1 == nil && err2 == nil {
			got[n] = us
		}
	}
	return got, err
}

// sweepTimeout bounds one sweep. After this time the program is asked to end, and after killDelay
// it is killed.
const (
	sweepTimeout = 4 * time.Minute
	killDelay    = 5 * time.Second
)

// output runs a program and returns its standard output. The error quotes the end of its standard
// error.
func output(ctx context.Context, env []string, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	// After TERM a launcher ends its ranks.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	err := cmd.Run()
	if err != nil {
		text := strings.TrimSpace(stderr.String())
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, text[max(0, len(text)-400):])
	}
	return out.String(), err
}

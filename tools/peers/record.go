package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// recordCommand runs the suite and writes its results. A missed floor is written, too. It is not an
// error, because the record shows what was measured.
func recordCommand(ctx context.Context, args []string, out, log io.Writer) error {
	var c benchmark
	f := c.flags(log, "record")
	dir := f.String("dir", "bench/results", "the `folder` to write to")
	rows := f.String("rows", "*", "only rows whose name, such as allreduce-shm-2, matches this `pattern`")
	if err := f.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(suite(), *rows)
	if err != nil {
		return err
	}
	built := buildPeers(ctx, log)
	if len(built) == 0 {
		fmt.Fprintln(log, "# there is nobody to compare with, so nothing is recorded")
		return nil
	}
	if !exists(filepath.Join(c.bin, "tuttirun")) {
		return fmt.Errorf("there is no tuttirun in %s: run make build", c.bin)
	}
	r := recorder{dir: *dir, log: log, origin: origin(ctx, *dir, args)}
	for _, row := range chosen {
		c.op, c.wire, c.np = row.op, row.wire, row.np
		if err := c.check(); err != nil {
			return err
		}
		t, err := c.runAll(ctx, c.contenders(built, io.Discard), log)
		if err != nil {
			return err
		}
		if err := errors.Join(t.print(out), r.record(row, t), r.summarise()); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "\n%s", r.summary())
	return err
}

// name returns the name of the row and of its files.
func (r row) name() string { return fmt.Sprintf("%s-%s-%d", r.op, r.wire, r.np) }

// choose returns the rows that the pattern matches. It fails if there are none.
func choose(all []row, pattern string) (chosen []row, err error) {
	for _, r := range all {
		ok, err := path.Match(pattern, r.name())
		if err != nil {
			return nil, fmt.Errorf("-rows %q: %w", pattern, err)
		}
		if ok {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-rows %q: matches no row", pattern)
	}
	return chosen, nil
}

// origin returns the first lines of all results.
func origin(ctx context.Context, dir string, args []string) []string {
	return []string{
		"commit: " + commit(ctx, ".", dir),
		"command: " + strings.Join(append([]string{"go run ./tools/peers record"}, args...), " "),
		"machine: " + machine(),
		"peers: " + versions(ctx),
	}
}

// A recorder writes results into a folder.
type recorder struct {
	dir    string
	log    io.Writer
	origin []string
	lines  []string // the lines of the summary
}

// record writes one row's table, as text and as CSV.
func (r *recorder) record(row row, t *table) error {
	var text strings.Builder
	if err := t.print(&text); err != nil {
		return err
	}
	verdict := "holds its floors"
	if err := t.checkFloors(&text, row.bands); err != nil {
		verdict = err.Error()
		fmt.Fprintln(&text, verdict)
	}
	line := fmt.Sprintf("%-22s", row.name())
	for i, got := range t.means(row.bands) {
		line += fmt.Sprintf("  %5.2f (%4.2f)", got, row.bands[i].floor)
	}
	r.lines = append(r.lines, line+"  "+verdict)
	return errors.Join(
		r.write(row.name()+".txt", text.String()),
		r.write(row.name()+".csv", t.csv()),
	)
}

// summary returns a line for each row so far.
func (r *recorder) summary() string {
	head := fmt.Sprintf("Best peer / tutti, geometric mean in each band (floor); above 1 tutti is faster.\n\n%-22s  %-12s  %-12s  %-12s  %-12s\n",
		"row", "4 B..", "1 KiB..", "64 KiB..", "4 MiB..")
	return head + strings.Join(r.lines, "\n") + "\n"
}

// summarise writes the summary after each row, because a recording may be interrupted.
func (r *recorder) summarise() error { return r.write("summary.txt", r.summary()) }

// write writes a file that begins with the origin. It renames the complete file, so that an
// incomplete one is never seen.
func (r *recorder) write(name, text string) error {
	if err := os.MkdirAll(r.dir, 0o777); err != nil {
		return err
	}
	whole := "# " + strings.Join(r.origin, "\n# ") + "\n" + text
	fresh := filepath.Join(r.dir, name+".new")
	if err := os.WriteFile(fresh, []byte(whole), 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(r.dir, name))
}

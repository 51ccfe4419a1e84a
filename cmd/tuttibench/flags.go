package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/tutti-go/tutti/comm"
)

// parse reads args, and shows the help only to those who ask for it: what is wrong
// on a command line fits one line, which each rank prints.
func parse(flags *flag.FlagSet, args []string, usage io.Writer) error {
	show := flags.Usage
	if show == nil {
		show = func() {
			fmt.Fprintf(usage, "Usage of %s:\n", flags.Name())
			flags.PrintDefaults()
		}
	}
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(usage)
		show()
	}
	return err
}

// A durationFlag is a time on the command line.
type durationFlag time.Duration

// String is the time as Set reads it.
func (s *durationFlag) String() string { return time.Duration(*s).String() }

// Set reads "150ms", "2s".
func (s *durationFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("want a time with its unit, as 150ms or 2s")
	}
	*s = durationFlag(d)
	return nil
}

// maxVector bounds a vector, in bytes, so that a slip of the pen is told from a
// wish; what of it the host has memory for is the host's to say.
const maxVector = 1 << 40

// tooLarge is the error of a vector that cannot be meant; nil when it can.
func tooLarge(flag string, s sizeFlag) error {
	if int64(s) > maxVector {
		return fmt.Errorf("-%s %d: want at most %d bytes (1024Gi)", flag, s, int64(maxVector))
	}
	return nil
}

// onRankZero has rank 0 find out whether what a flag asks of its host can be had,
// before anything is measured, and tells all ranks.
func onRankZero(ctx context.Context, c *comm.Comm, flag, path string, check func(path string) error) error {
	var own error
	if c.Rank() == 0 {
		own = check(path)
	}
	var text []byte
	if own != nil {
		text = []byte(own.Error())
	}
	size := []int{len(text)}
	if err := comm.Broadcast(ctx, c, size, 0); err != nil {
		return err
	}
	if size[0] == 0 {
		return nil
	}
	if c.Rank() > 0 {
		text = make([]byte, size[0])
	}
	if err := comm.Broadcast(ctx, c, text, 0); err != nil {
		return err
	}
	if own == nil {
		own = fmt.Errorf("rank 0: %s", text)
	}
	return fmt.Errorf("-%s %s: %w", flag, path, own)
}

// checkWritable makes a file's folder, and the file for a moment where there is none.
func checkWritable(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	_, missing := os.Stat(path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil || missing == nil {
		return err
	}
	return os.Remove(path)
}

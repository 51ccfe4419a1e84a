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

// parse parses args. It prints the help only for -h. Any other error is one line, because each rank
// prints it.
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

// String returns the time in the form that Set accepts.
func (s *durationFlag) String() string { return time.Duration(*s).String() }

// Set parses a duration such as "150ms" or "2s".
func (s *durationFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("want a time with its unit, such as 150ms or 2s")
	}
	*s = durationFlag(d)
	return nil
}

// maxVector is the largest vector in bytes that a flag accepts. A larger size is probably a
// typing error.
const maxVector = 1 << 40

// tooLarge returns an error if s exceeds maxVector, and nil otherwise.
func tooLarge(flag string, s sizeFlag) error {
	if int64(s) > maxVector {
		return fmt.Errorf("-%s %d: want at most %d bytes (1024Gi)", flag, s, int64(maxVector))
	}
	return nil
}

// onRankZero runs check on rank 0, before anything is measured, and returns the result on all
// ranks. The function check tests whether rank 0 can use the path that a flag names.
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

// checkWritable creates the folder of a file. If the file does not exist, it creates the file
// and removes it again.
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

package coordinator

import (
	"os"
	"strconv"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// tuneEnvironment reads the variables of Autotune from rank 0's environment. TUTTI_AUTOTUNE=1 or
// HOROVOD_AUTOTUNE=1 turns Autotune on. The variables below set its log, steps and samples. If the
// file named by TUTTI_AUTOTUNE_FILE exists, its settings are loaded and nothing is tuned. Otherwise
// Autotune writes the settings that it finds to this file.
func (o *options) tuneEnvironment(c *comm.Comm) error {
	if c.Rank() != 0 {
		return nil
	}
	file := os.Getenv("TUTTI_AUTOTUNE_FILE")
	if file != "" {
		if _, err := os.Stat(file); err == nil {
			s, err := LoadSettings(file)
			o.settings = &s
			return err
		}
	}
	switch name, on := first("TUTTI_AUTOTUNE", "HOROVOD_AUTOTUNE"); on {
	case "", "0":
		return nil
	case "1":
	default:
		return fault.New(fault.Misuse, "start coordinator", c.WorldRank(0), "%s: got %q, want 1 or 0", name, on)
	}
	o.autotune = &Autotune{File: file}
	for _, v := range []struct {
		to    *int
		most  int
		names []string
	}{
		{&o.autotune.Steps, 1 << 20, []string{"TUTTI_AUTOTUNE_STEPS_PER_SAMPLE", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"}},
		{&o.autotune.Samples, maxSamples, []string{"TUTTI_AUTOTUNE_MAX_SAMPLES", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"}},
	} {
		if name, text := first(v.names...); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || n > v.most {
				return fault.New(fault.Misuse, "start coordinator", c.WorldRank(0), "%s: got %q, want a number from 1 to %d", name, text, v.most)
			}
			*v.to = n
		}
	}
	if _, file := first("TUTTI_AUTOTUNE_LOG", "HOROVOD_AUTOTUNE_LOG"); file != "" {
		o.autotune.Log = &appender{file}
	}
	return nil
}

// first takes the names of several variables. It returns the name and the value of the first
// variable that is set.
func first(names ...string) (name, value string) {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return n, v
		}
	}
	return "", ""
}

// An appender appends to the named file, which it opens for each write.
type appender struct{ name string }

// Write implements io.Writer.
func (a *appender) Write(b []byte) (int, error) {
	f, err := os.OpenFile(a.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := f.Write(b)
	if e := f.Close(); err == nil {
		err = e
	}
	return n, err
}

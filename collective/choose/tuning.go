package choose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/tutti-go/tutti/collective"
)

// A TuningFile is the result of a measurement. The package comment has its format. Machine, Commit,
// Command and Measured are for people. They are not compared. Measurements are optional. Without
// measurements the rules still apply, but `tuttibench tune -add` cannot derive the rules again.
type TuningFile struct {
	Machine      string
	Commit       string
	Command      string
	Measured     string
	Model        Model
	Rules        []collective.TableRule
	Measurements []Measurement
}

// The bounds of a tuning file.
const (
	Version         = 1
	MaxFile         = 4 << 20 // bytes
	MaxLinks        = 256
	MaxMeasurements = 1 << 14
	maxText         = 1 << 12 // bytes of a text
)

const (
	micro  = 1e-6
	perMiB = 1.0 / (1 << 20)
)

// Encode returns the file's text, with one rule or measurement per line.
func (t *TuningFile) Encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n \"tutti_tuning\": %d,\n", Version)
	for _, f := range []struct{ name, text string }{
		{"machine", t.Machine}, {"commit", t.Commit}, {"command", t.Command}, {"taken", t.Measured},
	} {
		if f.text != "" {
			fmt.Fprintf(&b, " %q: %s,\n", f.name, quoted(f.text))
		}
	}
	fmt.Fprintf(&b, " \"gamma_us_per_MiB\": %s", number(t.Model.Gamma/micro/perMiB))
	section(&b, "links", t.Model.Links, func(l LinkCost) fields {
		return fields{}.text("wire", l.Wire).size("up_to_bytes", l.MaxBytes).
			number("alpha_us", l.Alpha/micro).number("beta_us_per_MiB", l.Beta/micro/perMiB)
	})
	section(&b, "rules", t.Rules, func(u collective.TableRule) fields {
		return fields{}.text("op", u.Algorithm.Verb().String()).text("wire", u.Wire).
			size("min_ranks", uint64(u.MinRanks)).size("max_ranks", uint64(u.MaxRanks)).size("up_to_bytes", u.MaxBytes).
			text("algorithm", u.Algorithm.Name()).size("segment", uint64(u.Segment))
	})
	section(&b, "times", t.Measurements, func(x Measurement) fields {
		return fields{}.text("op", x.Algorithm.Verb().String()).text("wire", x.Wire).
			size("ranks", uint64(x.Ranks)).size("bytes", uint64(x.Bytes)).
			text("algorithm", x.Algorithm.Name()).size("segment", uint64(x.Segment)).number("us", x.Seconds/micro)
	})
	b.WriteString("\n}\n")
	return b.Bytes()
}

// section writes a list with one item per line, unless it is empty.
func section[T any](b *bytes.Buffer, name string, items []T, line func(T) fields) {
	for i, item := range items {
		before := "\n"
		if i == 0 {
			before = fmt.Sprintf("\n \"%s\": [\n", name)
			b.WriteString(",")
		} else {
			b.WriteString(",")
		}
		fmt.Fprintf(b, "%s  {%s}", before, line(item))
	}
	if len(items) > 0 {
		b.WriteString("\n ]")
	}
}

// fields is a JSON object under construction. It omits fields whose value is "" or 0, except
// measured numbers.
type fields []byte

// add appends a field whose value is already encoded.
func (f fields) add(name, value string) fields {
	if len(f) > 0 {
		f = append(f, ", "...)
	}
	return fmt.Appendf(f, "%q: %s", name, value)
}

// text appends a string.
func (f fields) text(name, value string) fields {
	if value == "" {
		return f
	}
	return f.add(name, quoted(value))
}

// size appends a number of bytes or ranks.
func (f fields) size(name string, value uint64) fields {
	if value == 0 {
		return f
	}
	return f.add(name, strconv.FormatUint(value, 10))
}

// number appends a measured number.
func (f fields) number(name string, value float64) fields { return f.add(name, number(value)) }

// number formats v with six digits, which is more precise than any measurement. Fewer digits
// keep the file readable, and make equal measurements print equally.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// quoted returns text as a JSON string, without the escapes for HTML that json.Marshal adds.
func quoted(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(text) // encoding a string cannot fail
	return string(bytes.TrimSpace(b.Bytes()))
}

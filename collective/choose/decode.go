package choose

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
)

// Decode parses the text of a tuning file. Encode has written the text, and a user may have edited
// it. The parameter name is the file's name for error texts. For an invalid text, Decode returns
// fault.Misuse, and the error names the line, the field and the allowed values. A file without
// rules is valid.
func Decode(name string, text []byte) (*TuningFile, error) {
	p := &parser{name: name, text: text, dec: json.NewDecoder(bytes.NewReader(text))}
	p.dec.UseNumber()
	if len(text) > MaxFile {
		return nil, p.fail("", "got %d bytes, want at most %d; is it a tuning file?", len(text), MaxFile)
	}
	t := p.tuning()
	if p.err == nil {
		if _, err := p.dec.Token(); err != io.EOF {
			p.fail("", "got something after the object, want the end of the file")
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	return t, nil
}

// A parser reads JSON of a known form token by token, so that it knows the line of an error.
// After the first error, all methods do nothing.
type parser struct {
	name string
	text []byte
	dec  *json.Decoder
	err  error
}

// fail records an error at the current line, unless an earlier error is recorded. It returns the
// recorded error.
func (p *parser) fail(field, format string, args ...any) error {
	if p.err == nil {
		line := 1 + bytes.Count(p.text[:min(int(p.dec.InputOffset()), len(p.text))], []byte("\n"))
		if field != "" {
			format = "%s:%d: %s: " + format
			args = append([]any{p.name, line, field}, args...)
		} else {
			format = "%s:%d: " + format
			args = append([]any{p.name, line}, args...)
		}
		p.err = fault.New(fault.Misuse, "tuning", -1, format, args...)
	}
	return p.err
}

// token returns the next token, and records an error at the end of the file or for invalid
// JSON.
func (p *parser) token(field string) json.Token {
	if p.err != nil {
		return nil
	}
	t, err := p.dec.Token()
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		p.fail(field, "got the end of the file, want more; was it cut short?")
	case err != nil:
		p.fail(field, "got no JSON: %w", err)
	}
	return t
}

// delim reads a delimiter. If the delimiter differs from want, delim records an error. The
// parameter what describes want in the error text.
func (p *parser) delim(field string, want json.Delim, what string) {
	if t := p.token(field); p.err == nil && t != want {
		p.fail(field, "got %v, want %s", t, what)
	}
}

// fieldReaders maps the fields of an object to the functions that read their values. Each function
// takes the path of its field.
type fieldReaders map[string]func(field string)

// object reads an object. The object may have each of the known fields at most once, and must have
// all required fields.
func (p *parser) object(field string, known fieldReaders, required ...string) {
	p.delim(field, '{', "an object")
	var seen []string
	for p.err == nil && p.dec.More() {
		name, _ := p.token(field).(string)
		path := strings.TrimPrefix(field+"."+name, ".")
		read, ok := known[name]
		switch {
		case p.err != nil:
			return
		case !ok:
			p.fail(path, "got an unknown field, want one of %s", strings.Join(sortedNames(known), ", "))
		case slices.Contains(seen, name):
			p.fail(path, "got the field twice, want it once")
		default:
			seen = append(seen, name)
			read(path)
		}
	}
	p.delim(field, '}', "the object's end")
	for _, name := range required {
		if p.err == nil && !slices.Contains(seen, name) {
			p.fail(strings.TrimPrefix(field+"."+name, "."), "the field is missing; add it")
		}
	}
}

// sortedNames returns the names of the fields, for error texts that do not change from run to
// run.
func sortedNames(r fieldReaders) []string {
	var names []string
	for name := range r {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// list reads a list. The parameter most is the maximum number of items.
func (p *parser) list(field string, most int, item func(field string)) {
	p.delim(field, '[', "a list")
	for i := 0; p.err == nil && p.dec.More(); i++ {
		if i == most {
			p.fail(field, "got more than %d items, want at most %d", most, most)
			return
		}
		item(field + "[" + strconv.Itoa(i) + "]")
	}
	p.delim(field, ']', "the list's end")
}

// string reads a string. The parameter most is its maximum length in bytes.
func (p *parser) string(field string, most int) string {
	t := p.token(field)
	s, ok := t.(string)
	switch {
	case p.err != nil:
	case !ok:
		p.fail(field, "got %v, want a text in quotes", t)
	case len(s) > most:
		p.fail(field, "got %d bytes, want at most %d", len(s), most)
	}
	return s
}

// seconds reads a measured number in the given unit.
func (p *parser) seconds(field string, unit float64) float64 {
	const most = 1e12 // microseconds: twelve days
	t := p.token(field)
	n, ok := t.(json.Number)
	v, err := strconv.ParseFloat(string(n), 64)
	if p.err == nil && (!ok || err != nil || v < 0 || v > most) {
		p.fail(field, "got %v, want a number from 0 to %g", t, float64(most))
	}
	return v * unit
}

// integer reads a whole number. The parameter most is the largest allowed value.
func (p *parser) integer(field string, most uint64) uint64 {
	t := p.token(field)
	n, ok := t.(json.Number)
	v, err := strconv.ParseUint(string(n), 10, 64)
	if p.err == nil && (!ok || err != nil || v > most) {
		p.fail(field, "got %v, want a whole number from 0 to %d", t, most)
		return 0
	}
	return v
}

// tuning reads the whole file.
func (p *parser) tuning() *TuningFile {
	t := &TuningFile{}
	text := func(to *string) func(string) { return func(f string) { *to = p.string(f, maxText) } }
	p.object("", fieldReaders{
		"tutti_tuning": func(f string) {
			if v := p.integer(f, math.MaxInt32); p.err == nil && v != Version {
				p.fail(f, "got %d, want %d; measure again with this build's `tuttibench tune`", v, Version)
			}
		},
		"machine": text(&t.Machine), "commit": text(&t.Commit), "command": text(&t.Command), "taken": text(&t.Measured),
		"gamma_us_per_MiB": func(f string) { t.Model.Gamma = p.seconds(f, micro*perMiB) },
		"links": func(f string) {
			p.list(f, MaxLinks, func(f string) { t.Model.Links = append(t.Model.Links, p.link(f)) })
		},
		"rules": func(f string) {
			p.list(f, collective.MaxRules-len(collective.DefaultRules()), func(f string) { t.Rules = append(t.Rules, p.rule(f)) })
		},
		"times": func(f string) {
			p.list(f, MaxMeasurements, func(f string) { t.Measurements = append(t.Measurements, p.measurement(f)) })
		},
	}, "tutti_tuning")
	return t
}

// link reads the cost of a wire.
func (p *parser) link(field string) (l LinkCost) {
	p.object(field, fieldReaders{
		"wire":            func(f string) { l.Wire = p.string(f, collective.MaxWireName) },
		"up_to_bytes":     func(f string) { l.MaxBytes = p.integer(f, math.MaxInt64) },
		"alpha_us":        func(f string) { l.Alpha = p.seconds(f, micro) },
		"beta_us_per_MiB": func(f string) { l.Beta = p.seconds(f, micro*perMiB) },
	}, "wire", "alpha_us", "beta_us_per_MiB")
	if p.err == nil && l.Wire == "" {
		p.fail(field+".wire", "got an empty name, want one such as tcp")
	}
	return l
}

// rule reads a rule, and makes the same checks as NewTable.
func (p *parser) rule(field string) (u collective.TableRule) {
	var op, name string
	p.object(field, fieldReaders{
		"op":          func(f string) { op = p.string(f, maxText) },
		"algorithm":   func(f string) { name = p.string(f, maxText) },
		"wire":        func(f string) { u.Wire = p.string(f, collective.MaxWireName) },
		"min_ranks":   func(f string) { u.MinRanks = uint32(p.integer(f, math.MaxInt32)) },
		"max_ranks":   func(f string) { u.MaxRanks = uint32(p.integer(f, math.MaxInt32)) },
		"up_to_bytes": func(f string) { u.MaxBytes = p.integer(f, math.MaxInt64) },
		"segment":     func(f string) { u.Segment = uint32(p.integer(f, collective.MaxSegment)) },
	}, "op", "algorithm")
	u.Algorithm = p.algorithm(field, op, name)
	if p.err == nil {
		if err := u.Check(); err != nil {
			p.fail(field, "%w", fault.Cause(err))
		}
	}
	return u
}

// measurement reads a measured time.
func (p *parser) measurement(field string) (t Measurement) {
	var op, name string
	p.object(field, fieldReaders{
		"op":        func(f string) { op = p.string(f, maxText) },
		"algorithm": func(f string) { name = p.string(f, maxText) },
		"wire":      func(f string) { t.Wire = p.string(f, collective.MaxWireName) },
		"ranks":     func(f string) { t.Ranks = int(p.integer(f, math.MaxInt32)) },
		"bytes":     func(f string) { t.Bytes = int(p.integer(f, math.MaxInt)) },
		"segment":   func(f string) { t.Segment = int(p.integer(f, collective.MaxSegment)) },
		"us":        func(f string) { t.Seconds = p.seconds(f, micro) },
	}, "op", "algorithm", "ranks", "us")
	t.Algorithm = p.algorithm(field, op, name)
	if p.err == nil && t.Ranks < 2 {
		p.fail(field+".ranks", "got %d, want at least 2", t.Ranks)
	}
	if p.err == nil {
		if err := (collective.TableRule{Algorithm: t.Algorithm, Segment: uint32(t.Segment)}).Check(); err != nil {
			p.fail(field, "%w", fault.Cause(err))
		}
	}
	return t
}

// algorithm returns the algorithm with the given name for the operation op.
func (p *parser) algorithm(field, op, name string) collective.Algorithm {
	if p.err != nil {
		return collective.Algorithm{}
	}
	verb, err := collective.ParseVerb(op)
	if err != nil {
		p.fail(field+".op", "%w", fault.Cause(err))
		return collective.Algorithm{}
	}
	a, err := collective.Find(verb, name)
	if err != nil {
		p.fail(field+".algorithm", "%w", fault.Cause(err))
	}
	return a
}

package placement

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// A Dialect is the family of launchers whose rules a host file follows.
type Dialect uint8

// The dialects. A line such as n1:2 makes a file Hydra's, and a line with slots= makes it Open
// MPI's.
const (
	OpenMPI Dialect = iota // a host without slots has one per core; more ranks than slots are refused
	Hydra                  // a host without slots has one; with more ranks than slots, ranks begin again with the first host
)

// maxLine bounds the length of a line of a host file.
const maxLine = 4096

// A SyntaxError says where a host file is wrong. Line and Column count from 1, and columns count
// bytes.
type SyntaxError struct {
	File         string
	Line, Column int
	Text         string // what was got and what was wanted
}

// Error implements error.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// ParseFile parses a host file of either dialect. Each line names one host:
//
//	n1 slots=2 max_slots=4   # Open MPI; spaces around '=' are allowed
//	n1:2                     # Hydra
//
// A file that mixes the two forms is an error. A file without any slots has the default dialect. If
// a host is on several lines, their slots are added. A line without slots adds one slot. There is
// an exception: if it is the only line of its host, and the dialect is Open MPI's, the host has one
// slot per core (Slots 0).
func ParseFile(r io.Reader, name string, byDefault Dialect) ([]Host, Dialect, error) {
	f := fileParser{name: name, at: make(map[string]int)}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 256), maxLine)
	for lines.Scan() {
		f.line++
		f.text, f.rest = lines.Text(), lines.Text()
		if err := f.parseLine(); err != nil {
			return nil, 0, err
		}
	}
	if err := lines.Err(); err != nil {
		if err == bufio.ErrTooLong {
			return nil, 0, &SyntaxError{name, f.line + 1, maxLine, fmt.Sprintf("got a longer line, want at most %d bytes", maxLine)}
		}
		return nil, 0, fmt.Errorf("%s: %w", name, err)
	}
	if len(f.hosts) == 0 {
		return nil, 0, fmt.Errorf("%s: got no host, want at least one line such as %q", name, "n1 slots=2")
	}
	dialect := byDefault
	switch {
	case f.hydra > 0:
		dialect = Hydra
	case f.mpi > 0:
		dialect = OpenMPI
	}
	for i := range f.hosts {
		// A line without slots counts as one slot, unless it is the only line of an Open MPI host.
		if bare := f.bare[i]; dialect == Hydra || bare > 1 || f.hosts[i].Slots > 0 {
			f.hosts[i].Slots += bare
		}
		if h := &f.hosts[i]; h.Max > 0 && h.Slots > h.Max {
			return nil, 0, fmt.Errorf("%s: host %q: got %d slots, want at most max_slots=%d", name, h.Name, h.Slots, h.Max)
		}
	}
	return f.hosts, dialect, nil
}

// A fileParser reads a host file line by line.
type fileParser struct {
	name  string
	line  int
	text  string // the line
	rest  string // the part of the line that is not parsed yet
	hosts []Host
	at    map[string]int // the index of each host
	bare  []int          // for each host, how many of its lines give no slots
	hydra int            // the line that made the file Hydra's; 0 if none
	mpi   int            // the line that made the file Open MPI's; 0 if none
}

// errorAt returns a SyntaxError. The parameter after is the rest of the line from the error on,
// from which errorAt calculates the column.
func (f *fileParser) errorAt(after string, format string, args ...any) error {
	return &SyntaxError{f.name, f.line, len(f.text) - len(after) + 1, fmt.Sprintf(format, args...)}
}

// next cuts the next word or '=' from the line. It returns the word, and the text of the line from
// the word on. The word is empty at the end of the line.
func (f *fileParser) next() (word, from string) {
	from = strings.TrimLeft(f.rest, " \t\r")
	end := strings.IndexAny(from, " \t\r=")
	switch {
	case end < 0:
		end = len(from)
	case end == 0:
		end = 1 // '='
	}
	f.rest = from[end:]
	return from[:end], from
}

// parseLine adds the host of one line.
func (f *fileParser) parseLine() error {
	if at := strings.IndexByte(f.rest, '#'); at >= 0 {
		f.rest, f.text = f.rest[:at], f.text[:at]
	}
	word, from := f.next()
	if word == "" {
		return nil
	}
	name, slots, has, err := splitHost(word)
	if err != nil {
		return f.errorAt(from, "%v", err)
	}
	h, given := Host{Name: name}, has
	if has {
		if h.Slots, err = number(slots); err != nil {
			return f.errorAt(from[len(word)-len(slots):], "slots: %v", err)
		}
		if f.mpi > 0 {
			return f.errorAt(from, "got %q, want %s slots=%d as on line %d: a file has one dialect", word, name, h.Slots, f.mpi)
		}
		f.hydra = f.line
	}
	for {
		key, from := f.next()
		if key == "" {
			break
		}
		if f.hydra > 0 {
			return f.errorAt(from, "got %q, want nothing after %s: line %d has Hydra's form HOST:SLOTS, and a file has one dialect", key, word, f.hydra)
		}
		f.mpi = f.line
		if is, eq := f.next(); is != "=" {
			return f.errorAt(eq, "got %q, want '=' and a number after %s", is, key)
		}
		value, at := f.next()
		n, err := number(value)
		if err != nil {
			return f.errorAt(at, "%s: %v", key, err)
		}
		switch key {
		case "slots", "slot", "cpus", "cpu", "count":
			h.Slots, given = n, true
		case "max_slots", "max-slots", "slots_max", "slots-max", "max_cpus", "cpus_max":
			h.Max = n
		default:
			return f.errorAt(from, "got %q, want slots= or max_slots=; users, ports and keys go into ssh's own configuration", key)
		}
	}
	f.add(h, given)
	if len(f.hosts) > MaxHosts {
		return f.errorAt(from, "got more than %d hosts", MaxHosts)
	}
	return nil
}

// add adds a host. If earlier lines have named the host, it adds the slots to those that it has.
func (f *fileParser) add(h Host, given bool) {
	i, ok := f.at[h.Name]
	if !ok {
		i = len(f.hosts)
		f.at[h.Name] = i
		f.hosts, f.bare = append(f.hosts, Host{Name: h.Name}), append(f.bare, 0)
	}
	f.hosts[i].Slots += h.Slots
	f.hosts[i].Max = max(f.hosts[i].Max, h.Max)
	if !given {
		f.bare[i]++
	}
}

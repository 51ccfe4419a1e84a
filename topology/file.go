package topology

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// What bounds the names and files that come from outside.
const (
	// MaxName is the most bytes of a host's or a rack's name.
	MaxName = 64
	// MaxFile is the most bytes of a topology file.
	MaxFile = 1 << 20
	// MaxHosts is the most hosts that a topology file may list.
	MaxHosts = 1 << 14
)

// Racks says in which rack each host stands, by their names.
type Racks map[string]string

// ReadFile is ParseFile of a file's content. Its errors name the file.
func ReadFile(path string) (Racks, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.Misuse, "topology file", -1, "it cannot be read: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fault.New(fault.Misuse, "topology file", -1, "it cannot be read: %w", err)
	}
	racks, err := ParseFile(text)
	if err != nil {
		return nil, fault.New(fault.Misuse, "topology file "+path, -1, "%w", err)
	}
	return racks, nil
}

// ParseFile reads lines of the form
//
//	host rack
//
// with a host's name as the host itself gives it, and any blanks between and around
// the two. What follows a "#" is a comment; lines without anything else are skipped.
// Anything else gets an error that says which line is wrong, and how.
func ParseFile(text []byte) (Racks, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("it has more than %d bytes", MaxFile)
	}
	racks := make(Racks)
	lines := make(map[string]int)
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != 2 {
			return nil, fmt.Errorf("line %d has %d words, and must have two: a host and its rack", number, len(words))
		}
		for _, w := range words {
			if err := CheckName(w); err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
		}
		host := words[0]
		if lines[host] != 0 {
			return nil, fmt.Errorf("line %d: host %q is listed on line %d already", number, host, lines[host])
		}
		if len(racks) == MaxHosts {
			return nil, fmt.Errorf("line %d: more than %d hosts", number, MaxHosts)
		}
		racks[host], lines[host] = words[1], number
	}
	if len(racks) == 0 {
		return nil, fmt.Errorf("it lists no host")
	}
	return racks, nil
}

// CheckName refuses what is no name of a host or a rack: it has 1 to MaxName bytes,
// all of them printable ASCII, without blanks, "#" and "/".
func CheckName(name string) error {
	if name == "" {
		return fmt.Errorf("a name is empty")
	}
	if len(name) > MaxName {
		return fmt.Errorf("the name %.80q has %d bytes, of at most %d", name, len(name), MaxName)
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == '#' || c == '/' {
			return fmt.Errorf("the name %q has the byte %q, which is not allowed in one", name, c)
		}
	}
	return nil
}

// Apply puts every place in its host's rack, as rs says. A host that rs does not
// list gets fault.Misuse, and so does a rank that is told to be in another rack.
func (rs Racks) Apply(places []Place) error {
	for rank, p := range places {
		rack, ok := rs[p.Host]
		switch {
		case !ok:
			return fault.New(fault.Misuse, "topology file", -1, "it does not list host %q, where rank %d is: add the line %q", p.Host, rank, p.Host+" <rack>")
		case p.Rack != "" && p.Rack != rack:
			return fault.New(fault.Misuse, "topology file", -1, "it puts host %q in rack %q, but rank %d there is told to be in rack %q: give one of them only",
				p.Host, rack, rank, p.Rack)
		}
		places[rank].Rack = rack
	}
	return nil
}

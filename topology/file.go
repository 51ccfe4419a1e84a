package topology

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// The limits of external names and files.
const (
	// MaxName is the maximum length in bytes of the name of a host or a rack.
	MaxName = 64
	// MaxFile is the maximum size of a topology file in bytes.
	MaxFile = 1 << 20
	// MaxHosts is the maximum number of hosts in a topology file.
	MaxHosts = 1 << 14
)

// Racks maps the name of each host to the name of its rack.
type Racks map[string]string

// ReadFile parses the file at path. Its errors name the file.
func ReadFile(path string) (Racks, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.Misuse, "topology file", -1, "cannot be read: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fault.New(fault.Misuse, "topology file", -1, "cannot be read: %w", err)
	}
	racks, err := ParseFile(text)
	if err != nil {
		return nil, fault.New(fault.Misuse, "topology file "+path, -1, "%w", err)
	}
	return racks, nil
}

// ParseFile parses lines of the form
//
//	host rack
//
// The host's name must be the name that the host itself reports. Blanks are allowed between and
// around the two names. "#" begins a comment. Empty lines are skipped. For any other line,
// ParseFile returns an error that names the line and the mistake.
func ParseFile(text []byte) (Racks, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("size: got more than %d bytes, want at most %[1]d", MaxFile)
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
			return nil, fmt.Errorf("line %d: got %d words, want 2: a host and its rack", number, len(words))
		}
		for _, w := range words {
			if err := CheckName(w); err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
		}
		host := words[0]
		if lines[host] != 0 {
			return nil, fmt.Errorf("line %d: host %q is also on line %d; remove one of them", number, host, lines[host])
		}
		if len(racks) == MaxHosts {
			return nil, fmt.Errorf("line %d: got %d hosts, want at most %d", number, MaxHosts+1, MaxHosts)
		}
		racks[host], lines[host] = words[1], number
	}
	if len(racks) == 0 {
		return nil, fmt.Errorf("got no host, want lines with a host and its rack")
	}
	return racks, nil
}

// CheckName returns an error if a text cannot be the name of a host or a rack. A valid name has 1
// to MaxName bytes of printable ASCII, without blanks, "#" and "/".
func CheckName(name string) error {
	if name == "" {
		return fmt.Errorf("name: got an empty one, want 1 to %d bytes", MaxName)
	}
	if len(name) > MaxName {
		return fmt.Errorf("name %.80q: got %d bytes, want at most %d", name, len(name), MaxName)
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == '#' || c == '/' {
			return fmt.Errorf("name %q: got the byte %q, want printable ASCII without blanks, '#' and '/'", name, c)
		}
	}
	return nil
}

// Apply sets the rack of every place to the rack of the place's host. It returns fault.Misuse if rs
// does not list a host, or if a place already has a different rack.
func (rs Racks) Apply(places []Place) error {
	for rank, p := range places {
		rack, ok := rs[p.Host]
		switch {
		case !ok:
			return fault.New(fault.Misuse, "topology file", -1, "host %q of rank %d is not listed; add the line %q", p.Host, rank, p.Host+" <rack>")
		case p.Rack != "" && p.Rack != rack:
			return fault.New(fault.Misuse, "topology file", -1, "rack of host %q: got %q from the file and %q from rank %d's settings; give one of them only",
				p.Host, rack, p.Rack, rank)
		}
		places[rank].Rack = rack
	}
	return nil
}

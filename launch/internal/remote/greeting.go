package remote

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/tutti-go/tutti/internal/version"
)

// maxGreeting is the maximum number of bytes of a greeting.
const maxGreeting = 512

// greetingMark begins every greeting of every version.
const greetingMark = "tuttirun-remote"

// A greeting is the first line that each end writes: the mark, the version, and the name that the
// end's host has for itself, separated by spaces. The version contains no space.
type greeting struct{ version, host string }

// ownVersion returns the version of this program. Two programs work together only if their versions
// are equal. The version contains the operating system, because the numbers of signals differ
// between systems.
func ownVersion() string {
	return version.Version + "/" + version.Commit() + "/" + runtime.GOOS
}

// ownGreeting returns the greeting of this end.
func ownGreeting(version string) greeting {
	host, err := os.Hostname()
	if err != nil || host == "" || strings.ContainsAny(host, " \n") {
		host = "unknown"
	}
	return greeting{version, host}
}

// write writes the greeting.
func (g greeting) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s %s %s\n", greetingMark, g.version, g.host)
	return err
}

// readGreeting reads one line, and nothing after it. Its error quotes a line that is no greeting,
// because a login script may have printed the line.
func readGreeting(r io.Reader) (greeting, error) {
	line := make([]byte, 0, maxGreeting)
	for {
		n, err := r.Read(line[len(line) : len(line)+1])
		line = line[:len(line)+n]
		switch {
		case bytes.HasSuffix(line, []byte("\n")):
			return parseGreeting(string(line[:len(line)-1]))
		case err != nil && len(line) > 0:
			return greeting{}, fmt.Errorf("%v after %q", err, line)
		case err != nil:
			return greeting{}, err
		case len(line) == maxGreeting:
			return greeting{}, notGreeting(string(line))
		}
	}
}

// parseGreeting decodes a greeting without its end of line.
func parseGreeting(line string) (greeting, error) {
	f := strings.Split(line, " ")
	if len(f) != 3 || f[0] != greetingMark || f[1] == "" || f[2] == "" || strings.ContainsFunc(line, unprintable) {
		return greeting{}, notGreeting(line)
	}
	return greeting{f[1], f[2]}, nil
}

// unprintable reports whether a greeting must not contain the character. A greeting is printed on
// the user's terminal.
func unprintable(r rune) bool { return r < ' ' || r > '~' }

func notGreeting(line string) error {
	const enough = 80
	if len(line) > enough {
		line = line[:enough]
	}
	return fmt.Errorf("got %q, want tuttirun's greeting: a login script must print nothing to a program", line)
}

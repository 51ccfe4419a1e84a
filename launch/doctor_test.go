package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseDoctor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte("n1 slots=4\nn2 slots=2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		want string // hosts and slots, agent, interface, ports, json
	}{
		{"", "[localhost:0] [] eth false"},
		{"-H n1:2,n2", "[n1:2 n2:1] [] eth false"},
		{"--hostfile FILE --json", "[n1:4 n2:2] [] eth true"},
		{"-f FILE -host n2", "[n2:1] [] eth false"},
		{"--listen :7000-7010 --interface ib --mca plm_rsh_agent rsh", "[localhost:0] [rsh] ib:7000-7010 false"},
		{"-listen=:7000", "[localhost:0] [] eth:7000 false"},
	} {
		args := strings.Fields(strings.ReplaceAll(c.args, "FILE", file))
		r, err := parseDoctor(args, nil)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		var hosts []string
		for _, h := range r.job.Hosts {
			hosts = append(hosts, fmt.Sprintf("%s:%d", h.Name, h.Slots))
		}
		at := r.options.Interface
		if at == "" {
			at = "eth"
		}
		if got := fmt.Sprint(hosts, " ", r.job.Agent, " ", at, r.options.Ports, " ", r.json); got != c.want {
			t.Errorf("%q: got %q, want %q", c.args, got, c.want)
		}
	}
	for args, want := range map[string]string{
		"program":          `got "program", want options only`,
		"--listen":         "unknown option --listen",
		"-H n1:x":          "slots",
		"--hostfile /none": "no such file",
		"--jsn":            "jsn",
		"--listen 7000":    `--listen: got "7000", want ports alone`,
		"--listen=n1:7000": `--listen: got "n1:7000", want ports alone`,
	} {
		var usage usageError
		if _, err := parseDoctor(strings.Fields(args), nil); !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
	if r, err := parseDoctor([]string{"--help"}, nil); err != nil || !r.help {
		t.Errorf("got %+v, %v, want the help", r, err)
	}
}

func TestLookedUp(t *testing.T) {
	for name, want := range map[string]string{"10.0.0.1": "10.0.0.1", "ann@10.0.0.1": "10.0.0.1", "fd00::1": "fd00::1", "127.0.0.2": ""} {
		if got := lookedUp(t.Context(), name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

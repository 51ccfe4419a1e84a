//go:build unix

package agent

import (
	"bufio"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
)

// The unit for systemd must have options that this version of the agent understands, and must not
// give a launcher more rights than the user has.
func TestTheUnitForSystemdStartsAnAgent(t *testing.T) {
	file, err := os.Open("../../../deploy/systemd/tuttirun-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unit, section := make(map[string]string), ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		key, value, ok := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "["):
			section = line
		case !ok || section == "":
			t.Errorf("got the line %q, want KEY=VALUE in a section", line)
		default:
			unit[section+key] = value
		}
	}
	for key, want := range map[string]string{
		"[Service]NoNewPrivileges": "yes", "[Service]CapabilityBoundingSet": "", "[Service]RestrictSUIDSGID": "yes",
		"[Service]KillMode": "mixed", "[Service]Type": "exec",
		"[Service]OOMPolicy": "continue", "[Service]RestartSec": "5s", "[Install]WantedBy": "multi-user.target",
	} {
		if got, ok := unit[key]; !ok || got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	if user := unit["[Service]User"]; user == "" || user == "root" {
		t.Errorf("got the user %q, want another one than root", user)
	}
	words := strings.Fields(unit["[Service]ExecStart"])
	if len(words) < 2 || words[1] != "agent" || slices.Contains(words, "--allow-run-as-root") {
		t.Fatalf("got the command %q, want tuttirun agent, and no root", words)
	}
	o, err := parse(append(words[2:], "--allow-run-as-root")) // this test may run as root
	if err != nil {
		t.Fatal(err)
	}
	if _, port, err := net.SplitHostPort(o.listen); err != nil || port != Port {
		t.Errorf("got the address %q, want the port %s", o.listen, Port)
	}
	credential, _, _ := strings.Cut(unit["[Service]LoadCredential"], ":")
	if o.Secret != "${CREDENTIALS_DIRECTORY}/"+credential || credential == "" {
		t.Errorf("the agent reads %q, and systemd loads %q", o.Secret, credential)
	}
}

package archtest

import (
	_ "embed"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

//go:embed policy.txt
var policy string

func TestImportsFollowThePolicy(t *testing.T) {
	rules, err := parsePolicy(policy)
	if err != nil {
		t.Fatal(err)
	}
	violations, err := check(os.DirFS("../../.."), rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		t.Error(v)
	}
}

// The checker must report violations. Each case is a file that violates the policy, or a file that
// barely complies with it.
func TestCheckerFindsEachViolation(t *testing.T) {
	const ours = `"` + module + "/"
	for name, c := range map[string]struct {
		file, text string
		want       string // the text of the only violation; "" if there is none
	}{
		"arrow down":              {"collective/ring.go", "package collective; import " + ours + `p2p"`, ""},
		"arrow up":                {"fault/fault.go", "package fault; import " + ours + `tensor"`, "no such arrow"},
		"algorithm imports wire":  {"collective/ring.go", "package collective; import " + ours + `transport/tcp"`, "no such arrow"},
		"algorithm, contract":     {"collective/ring.go", "package collective; import " + ours + `transport"`, "no such arrow"},
		"wire imports wire":       {"transport/grpc/conn.go", "package grpc; import " + ours + `transport/tcp"`, "no such arrow"},
		"suite imports wire":      {"transport/transporttest/run.go", "package transporttest; import " + ours + `transport/memory"`, "no such arrow"},
		"flaky imports wire":      {"transport/flaky/conn.go", "package flaky; import " + ours + `transport/memory"`, "no such arrow"},
		"auto imports wires":      {"transport/auto/auto.go", "package auto; import " + ours + `transport/tcp"`, ""},
		"comm assembles a mesh":   {"comm/init.go", "package comm; import " + ours + `mesh"`, ""},
		"comm, mesh elsewhere":    {"comm/request.go", "package comm; import " + ours + `mesh"`, "only in init.go"},
		"comm, engine elsewhere":  {"comm/named.go", "package comm; import " + ours + `rendezvous"`, "only in init.go"},
		"comm chooses a wire":     {"comm/transports.go", "package comm; import " + ours + `transport/auto"`, ""},
		"comm, wire elsewhere":    {"comm/init.go", "package comm; import " + ours + `transport/memory"`, "only in transports.go"},
		"comm, contract":          {"comm/share.go", "package comm; import " + ours + `transport"`, "only in transports.go"},
		"comm, test of a wire":    {"comm/share_test.go", "package comm; import " + ours + `transport"`, ""},
		"launch, bootstrap":       {"launch/start.go", "package launch; import " + ours + `bootstrap"`, "no such arrow"},
		"grpc where it belongs":   {"transport/grpc/conn.go", `package grpc; import "google.golang.org/grpc"`, ""},
		"grpc elsewhere":          {"mesh/mesh.go", `package mesh; import "google.golang.org/grpc"`, "third party"},
		"named like a third":      {"reduce/a.go", `package reduce; import "gonum.org/v1/gonumx"`, "third party"},
		"other system's file":     {"p2p/p2p_windows.go", "//go:build windows\n\npackage p2p; import " + ours + `comm"`, "no such arrow"},
		"impure decision":         {"mesh/membership/step.go", `package membership; import "time"`, "forbids"},
		"log in the library":      {"comm/comm.go", `package comm; import "log"`, "must name"},
		"cgo":                     {"transport/tcp/poll.go", `package tcp; import "C"`, "must name"},
		"side effects":            {"comm/comm.go", `package comm; import _ "net/http/pprof"`, "side effects"},
		"embed":                   {"examples/internal/digits/data.go", `package digits; import _ "embed"`, ""},
		"init":                    {"comm/comm.go", "package comm; func init() {}", "init function"},
		"method init":             {"comm/comm.go", "package comm; type t int; func (t) init() {}", ""},
		"exit in the library":     {"comm/comm.go", `package comm; import "os"; func f() { os.Exit(1) }`, "os.Exit"},
		"exit in a program":       {"cmd/tuttirun/main.go", `package main; import "os"; func main() { os.Exit(1) }`, ""},
		"no Go":                   {"comm/comm.go", "packages comm", "expected 'package'"},
		"unknown package":         {"util/util.go", "package util", "no line of the policy"},
		"test imports upwards":    {"collective/ring_test.go", "package collective_test; import " + ours + `comm"`, ""},
		"test, assertion library": {"comm/comm_test.go", `package comm; import "github.com/stretchr/testify/assert"`, "third party"},
		"test data":               {"comm/testdata/bad.go", "package comm; import " + ours + `ps"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := parsePolicy(policy)
			if err != nil {
				t.Fatal(err)
			}
			got, err := check(fstest.MapFS{c.file: {Data: []byte(c.text)}}, rules)
			if err != nil {
				t.Fatal(err)
			}
			joined := strings.Join(got, "\n")
			if c.want == "" && joined != "" {
				t.Errorf("got %s, want no violation", joined)
			}
			if c.want != "" && (len(got) != 1 || !strings.Contains(joined, c.want)) {
				t.Errorf("got %q, want one violation with %q", joined, c.want)
			}
		})
	}
}

func TestParsePolicyRefusesArrowsThatDoNotPointDown(t *testing.T) {
	for _, text := range []string{
		"a: b\nb:",
		"a: a",
		"a: b",
		"a b",
	} {
		if rules, err := parsePolicy(text); err == nil {
			t.Errorf("parsePolicy(%q) = %v, want an error", text, rules)
		}
	}
	if _, err := parsePolicy("a:\nb: a, host.org/x/..., !time, unsafe"); err != nil {
		t.Error(err)
	}
}

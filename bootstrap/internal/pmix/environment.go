package pmix

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// A Lookup reads one variable of the environment.
type Lookup = func(name string) (value string, ok bool)

// The variables that a PMIx server sets for its processes. The name of a variable with the server's
// address begins with varServer and ends with the number of a dialect.
const (
	varNamespace = "PMIX_NAMESPACE"
	varRank      = "PMIX_RANK"
	varSecurity  = "PMIX_SECURITY_MODE"
	varServer    = "PMIX_SERVER_URI"
)

// A dialect is a form of messages. The field version is a version of the PMIx library that speaks
// this dialect.
type dialect struct {
	name, version string
	varints       bool
}

// dialects lists the dialects that this package speaks, newest first. A server sets one variable
// for each dialect that it accepts. The newest of these is the server's own dialect. The newest one
// should be used, because some servers do not answer in an older dialect.
var dialects = [...]dialect{
	{"v61", "6.1.0", true},
	{"v51", "5.1.0", true},
	{"v41", "4.1.2", true},
	{"v4", "4.0.0", true},
	{"v3", "3.1.5", false},
	{"v21", "2.1.4", false},
}

// An environment is what a PMIx server has told this process.
type environment struct {
	nspace   string // the name of the job
	rank     uint32
	server   string // host:port
	dialect  dialect
	security string // the name of the security mode
}

// Present reports whether the variables of PMIx are set, with an address of the server.
func Present(lookup Lookup) bool {
	_, name := serverOf(lookup)
	return name != "" && get(lookup, varNamespace) != "" && get(lookup, varRank) != ""
}

// Local reports whether the server listens on loopback, so that only processes of this host reach
// it.
func Local(lookup Lookup) bool {
	d, name := serverOf(lookup)
	if name == "" {
		return false
	}
	_, host, err := parseURI(get(lookup, varServer+strings.TrimPrefix(d.name, "v")))
	a, bad := netip.ParseAddr(host)
	return err == nil && bad == nil && a.IsLoopback()
}

// get returns a variable, or "" if it is not set.
func get(lookup Lookup, name string) string {
	v, _ := lookup(name)
	return v
}

// serverOf returns the newest dialect that the server accepts, and the name of the variable with
// its address, or "".
func serverOf(lookup Lookup) (dialect, string) {
	for _, d := range dialects {
		if name := varServer + strings.TrimPrefix(d.name, "v"); get(lookup, name) != "" {
			return d, name
		}
	}
	return dialect{}, ""
}

// readEnvironment reads the variables of PMIx.
func readEnvironment(lookup Lookup) (e environment, err error) {
	e.nspace = get(lookup, varNamespace)
	if e.nspace == "" || len(e.nspace) > maxNamespace {
		return e, fmt.Errorf("%s: got %d bytes, want 1 to %d", varNamespace, len(e.nspace), maxNamespace)
	}
	rank, err := strconv.ParseUint(get(lookup, varRank), 10, 32)
	if err != nil || rank >= maxRanks {
		return e, fmt.Errorf("%s: got %.20q, want a number below %d", varRank, get(lookup, varRank), maxRanks)
	}
	e.rank = uint32(rank)
	d, name := serverOf(lookup)
	if name == "" {
		return e, errors.New(varServer + "*: got none, want the address of a server")
	}
	e.dialect = d
	if e.server, _, err = parseURI(get(lookup, name)); err != nil {
		return e, fmt.Errorf("%s: %w", name, err)
	}
	e.security, err = security(get(lookup, varSecurity))
	return e, err
}

// parseURI returns the address, and its host, from text such as "job.0;tcp4://127.0.0.1:4000".
func parseURI(text string) (addr, host string, err error) {
	_, uri, _ := strings.Cut(text, ";")
	for _, scheme := range []string{"tcp4://", "tcp6://", "tcp://"} {
		rest, ok := strings.CutPrefix(uri, scheme)
		if i := strings.LastIndexByte(rest, ':'); ok && i > 0 {
			host = strings.Trim(rest[:i], "[]")
			return net.JoinHostPort(host, rest[i+1:]), host, nil
		}
	}
	return "", "", fmt.Errorf("got %.80q, want NAME;tcp4://HOST:PORT", text)
}

// security returns the first mode of the server's list that this package knows.
func security(modes string) (string, error) {
	for mode := range strings.SplitSeq(modes, ",") {
		switch mode {
		case "", "native":
			return "native", nil
		case "none":
			return mode, nil
		}
	}
	return "", fmt.Errorf("%s: got %.80q, want native or none", varSecurity, modes)
}

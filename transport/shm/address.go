package shm

import (
	"fmt"
	"net/url"
	"strings"
)

// A locality shows which processes can share memory: processes can share memory if their localities
// are equal. Its text form:
//
//	locality = boot "/" host "/" net "/" user
//	address  = locality "/@" name            name of a unix socket without a file
//
// The field boot is a hash of the kernel's boot ID. The field host is the escaped host name,
// because users regard containers of one kernel as different hosts. The field net is the number of
// the network namespace, because a socket's name is valid only within its network namespace. The
// field user holds the number of the user and the number of the user namespace.
type locality struct{ boot, host, net, user string }

// maxFieldLen bounds each part of an address, so that all five together stay below
// transport.MaxAddr.
const maxFieldLen = 100

// String returns the locality in the form that addresses use.
func (p locality) String() string {
	return strings.Join([]string{p.boot, p.host, p.net, p.user}, "/")
}

// escape replaces the characters of s that have a special meaning in an address or in a list of
// addresses. A long name is cut: the boot ID beside it still distinguishes hosts.
func escape(s string) string {
	s = strings.NewReplacer("=", "%3D", "+", "%20").Replace(url.QueryEscape(s))
	return s[:min(len(s), maxFieldLen)]
}

// difference names the part in which q differs from p. It returns "" when processes of both
// localities can share memory. It is symmetric.
func (p locality) difference(q locality) string {
	switch {
	case p.boot != q.boot:
		return "another host"
	case p.host != q.host:
		return fmt.Sprintf("another host name, %q", unescape(q.host))
	case p.net != q.net:
		return "another network namespace"
	case p.user != q.user:
		return "another user"
	}
	return ""
}

// unescape is the inverse of escape, for error texts.
func unescape(s string) string {
	if host, err := url.QueryUnescape(s); err == nil {
		return host
	}
	return s
}

// An address names a Transport that others can dial.
type address struct {
	locality
	name string // the socket's name, without the @
}

// String returns the address as Serve returns it.
func (a address) String() string { return a.locality.String() + "/@" + a.name }

// parseAddress reads an address. It accepts exactly the texts that String returns. It fails for all
// other texts, because addresses come from other processes.
func parseAddress(s string) (address, error) {
	f := strings.Split(s, "/")
	if len(f) != 5 || !strings.HasPrefix(f[4], "@") || len(f[4]) < 2 {
		return address{}, fmt.Errorf("got address %.80q, want boot/host/net/user/@name", s)
	}
	for _, part := range f {
		if len(part) > maxFieldLen || strings.ContainsAny(part, "\x00") {
			return address{}, fmt.Errorf("got address %.80q with a part of %d bytes, want at most %d and no zero byte", s, len(part), maxFieldLen)
		}
	}
	return address{locality{f[0], f[1], f[2], f[3]}, f[4][1:]}, nil
}

package shm

import (
	"fmt"
	"net/url"
	"strings"
)

// A locality is where a process runs, as far as sharing memory is concerned: processes of equal
// localities can share it. As text:
//
//	locality = boot "/" host "/" net "/" user
//	address  = locality "/@" name            name of a unix socket without a file
//
// boot is a hash of the kernel's boot ID. host is the host name, escaped, since containers of
// one kernel are different hosts to their users. net is the number of the network namespace,
// within which the socket's name is known. user is the user's number and that of the user
// namespace.
type locality struct{ boot, host, net, user string }

// maxFieldLen bounds each part of an address, so that all five together stay below
// transport.MaxAddr.
const maxFieldLen = 100

// String returns the locality as it stands in an address.
func (p locality) String() string {
	return strings.Join([]string{p.boot, p.host, p.net, p.user}, "/")
}

// escape replaces the letters of s that have a meaning in an address or in a list of addresses.
// A long name is cut: the boot ID beside it still distinguishes hosts.
func escape(s string) string {
	s = strings.NewReplacer("=", "%3D", "+", "%20").Replace(url.QueryEscape(s))
	return s[:min(len(s), maxFieldLen)]
}

// difference returns in what q differs from p, or "" when processes of the two can share
// memory. It is symmetric.
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

// unescape undoes escape, for error texts.
func unescape(s string) string {
	if host, err := url.QueryUnescape(s); err == nil {
		return host
	}
	return s
}

// An address is what a Transport is dialled by.
type address struct {
	locality
	name string // of the socket, without the @
}

// String returns the address as Serve returns it.
func (a address) String() string { return a.locality.String() + "/@" + a.name }

// parseAddress reads an address. What it returns is equal to what String was called on, or it fails:
// addresses come from other processes.
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

package shm

import (
	"fmt"
	"net/url"
	"strings"
)

// A locality is where a process runs, as far as sharing memory goes: processes of
// equal places can. As a text:
//
//	place   = boot "/" host "/" net "/" user
//	address = place "/@" name            name of a unix socket without a file
//
// boot is a hash of the kernel's boot ID; host is the host name, escaped, since
// containers with one kernel are different hosts to their users; net is the number of the
// network namespace, within which the socket's name is known; user is the user's
// number and that of its namespace.
type locality struct{ boot, host, net, user string }

// maxFieldLen bounds each part of an address, so that all are less than
// transport.MaxAddr.
const maxFieldLen = 100

func (p locality) String() string {
	return strings.Join([]string{p.boot, p.host, p.net, p.user}, "/")
}

// escape leaves no letter of s that means something in an address, nor in a list
// of addresses. A long name is cut: the boot ID beside it tells hosts apart.
func escape(s string) string {
	s = strings.NewReplacer("=", "%3D", "+", "%20").Replace(url.QueryEscape(s))
	return s[:min(len(s), maxFieldLen)]
}

// difference says in what q is not p; "" when processes there and here can share.
// It is symmetric.
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

// unescape is for people.
func unescape(s string) string {
	if host, err := url.QueryUnescape(s); err == nil {
		return host
	}
	return s
}

// An address is where a Transport can be dialled.
type address struct {
	locality
	name string // of the socket, without the @
}

func (a address) String() string { return a.locality.String() + "/@" + a.name }

func parseAddress(s string) (address, error) {
	f := strings.Split(s, "/")
	if len(f) != 5 || !strings.HasPrefix(f[4], "@") || len(f[4]) < 2 {
		return address{}, fmt.Errorf("%.80q is not boot/host/net/user/@name", s)
	}
	for _, part := range f {
		if len(part) > maxFieldLen || strings.ContainsAny(part, "\x00") {
			return address{}, fmt.Errorf("a part of the address %.80q cannot be", s)
		}
	}
	return address{locality{f[0], f[1], f[2], f[3]}, f[4][1:]}, nil
}

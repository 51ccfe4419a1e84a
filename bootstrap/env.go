package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// itoa is a short name for strconv.Itoa, for the messages of this package.
func itoa(n int) string { return strconv.Itoa(n) }

// refuse returns an error about the environment. The parameter rank is unknown (-1) until the rank
// has been read.
func refuse(rank int, format string, args ...any) error {
	return fault.New(fault.Refused, op, rank, format, args...)
}

// badVariable refuses the value of a variable. The error says why and what to do. It quotes and
// truncates the value, because the value may be long or binary, and the message goes to logs.
// Callers never pass secrets.
func badVariable(rank int, name, value, why, remedy string) error {
	if len(value) > 80 {
		value = value[:80] + "…"
	}
	return refuse(rank, "%s=%q %s: %s", name, value, why, remedy)
}

// get returns a variable that is set and not empty. A variable set to "" counts as not set, because
// scripts often clear a variable in this way.
func (f *finder) get(name string) (string, bool) {
	v, ok := f.lookup(name)
	return v, ok && v != ""
}

// has reports whether a variable is set and not empty.
func (f *finder) has(name string) bool {
	_, ok := f.get(name)
	return ok
}

// number reads a decimal number in the range from lo to hi. If the variable is not set, ok is false
// and err is nil. If its value is not a number in that range, number returns an error.
func (f *finder) number(rank int, name string, lo, hi int64) (n int, ok bool, err error) {
	v, ok := f.get(name)
	if !ok {
		return 0, false, nil
	}
	i, err := strconv.ParseInt(v, 10, 64)
	if err != nil || i < lo || i > hi {
		return 0, true, badVariable(rank, name, v, "is not a number from "+strconv.FormatInt(lo, 10)+" to "+strconv.FormatInt(hi, 10), "correct it, or unset it")
	}
	return int(i), true, nil
}

// flag reads a boolean as strconv.ParseBool does; a variable that is not set is false.
func (f *finder) flag(rank int, name string) (bool, error) {
	v, ok := f.get(name)
	if !ok {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, badVariable(rank, name, v, "is neither true nor false", "use 1 or 0")
	}
	return b, nil
}

// duration reads a Go duration such as 90s, or a plain number of seconds, as other launchers accept
// it. A negative duration is an error.
func (f *finder) duration(rank int, name string) (time.Duration, bool, error) {
	v, ok := f.get(name)
	if !ok {
		return 0, false, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		d, err = time.ParseDuration(v + "s")
	}
	if err != nil || d < 0 {
		return 0, true, badVariable(rank, name, v, "is not a duration", "use one like 90s or 10m; 0 means none")
	}
	return d, true, nil
}

// newJob returns a job whose host layout is unknown. Most sources begin with such a job. Its name
// is "tutti" until the source replaces it.
func newJob(source string) *Job {
	return &Job{LocalRank: -1, LocalSize: -1, listenFD: -1, Name: "tutti", Source: source}
}

// rankAndSize reads the two numbers that every source of several ranks needs. If either is not set,
// rankAndSize returns an error. A launcher sets both, and a rank that guessed the missing number
// might wait for ranks that do not exist.
func (f *finder) rankAndSize(j *Job, rankVar, sizeVar string) error {
	for _, pair := range [][2]string{{rankVar, sizeVar}, {sizeVar, rankVar}} {
		if !f.has(pair[1]) {
			v, _ := f.get(pair[0])
			return refuse(unknown, "%s=%q, but %s is not set: set both for each rank", pair[0], v, pair[1])
		}
	}
	size, _, err := f.number(unknown, sizeVar, 1, MaxRanks)
	if err != nil {
		return err
	}
	rank, _, err := f.number(unknown, rankVar, 0, MaxRanks-1)
	if err != nil {
		return err
	}
	if rank >= size {
		return badVariable(unknown, rankVar, itoa(rank), "is not a rank of "+itoa(size)+" ("+sizeVar+")", "ranks count from 0")
	}
	j.Rank, j.Size = rank, size
	return nil
}

// localRank reads this rank's index among the ranks of this host, and the number of these ranks. If
// either variable is missing, LocalRank and LocalSize stay -1, because a source may not know the
// layout of hosts.
func (f *finder) localRank(j *Job, rankVar, sizeVar string) error {
	size, ok, err := f.number(j.Rank, sizeVar, 1, int64(j.Size))
	if err != nil {
		return err
	}
	rank, okRank, err := f.number(j.Rank, rankVar, 0, int64(j.Size)-1)
	if err != nil {
		return err
	}
	if ok && okRank {
		if rank >= size {
			return badVariable(j.Rank, rankVar, itoa(rank), "is not a rank of "+itoa(size)+" ("+sizeVar+")", "local ranks count from 0")
		}
		j.LocalRank, j.LocalSize = rank, size
	}
	return nil
}

// plainName reports whether a job's name is valid in handshakes, and in names of files and of
// shared memory: 1 to 64 letters, digits and the characters .-_:@.
func plainName(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:@") == ""
}

// nameFrom makes a job's name from any text. If the text is a valid name, the result is the prefix
// and the text. Otherwise it is the prefix and a hash of the text. All ranks compute the same name
// from the same text, without a message.
func nameFrom(prefix, s string) string {
	if name := prefix + "." + s; plainName(name) {
		return name
	}
	sum := sha256.Sum256([]byte(s))
	return prefix + "." + hex.EncodeToString(sum[:8])
}

// checkAddr checks that s has the form host:port, with both parts. It does not resolve the name,
// because the host may not exist yet.
func checkAddr(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("is not host:port")
	}
	if host == "" || len(host) > 253 || strings.ContainsAny(host, " \t\r\n/\\\"") {
		return errors.New("has no valid host")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errors.New("has no port from 1 to 65535")
	}
	return nil
}

// splitListen splits host, host:port or :port. The port may be a range; see portRange. If it is
// missing, port is "". An IPv6 address without a port may be in brackets.
func splitListen(s string) (host, port string, err error) {
	if host, port, err = net.SplitHostPort(s); err == nil {
		_, _, err := portRange(port)
		return host, port, err
	}
	host = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return "", "", err
		}
	}
	if strings.ContainsAny(host, " \t\r\n/\\\"") || host != "" && strings.Trim(host, "0123456789-") == "" {
		return "", "", errors.New("bad host") // digits alone are a port without its colon
	}
	return host, "", nil
}

// portRange parses a port, or a range such as 7000-7099. A single port may be 0, but a range must
// not contain 0.
func portRange(s string) (first, last int, err error) {
	low, high, several := strings.Cut(s, "-")
	if !several {
		high = low
	}
	a, err := strconv.ParseUint(low, 10, 16)
	b, err2 := strconv.ParseUint(high, 10, 16)
	if errors.Join(err, err2) != nil || a > b || several && a == 0 {
		return 0, 0, errors.New("bad port")
	}
	return int(a), int(b), nil
}

// isLoopback reports whether the text of an address, with or without a port, is loopback. It
// resolves no name except localhost, because a resolver's answer must not decide whether a job may
// stay on loopback.
func isLoopback(s string) bool {
	host, _, err := splitListen(s)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

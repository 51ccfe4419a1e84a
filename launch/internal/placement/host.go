package placement

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/internal/cpu"
)

// MaxHosts bounds the number of hosts of a job.
const MaxHosts = 4096

// maxSlots bounds the slots of a host.
const maxSlots = 1 << 16

// A Host is a machine that can run ranks.
type Host struct {
	Name  string       // as the user wrote it, without brackets around an IPv6 address
	Slots int          // how many ranks may run there; 0: one per core, see Assign
	Max   int          // the upper bound even if more ranks than slots are allowed; 0: none
	CPUs  []cpu.Thread // the processors that ranks may use; nil until the host has reported them
}

// SlotsUnder returns how many ranks may run on a host under a policy, or 0 if this is unknown.
func (h *Host) SlotsUnder(p *Policy) int {
	n := h.Slots
	if n == 0 {
		n = len(p.units(h.CPUs))
	}
	if h.Max > 0 {
		n = min(n, h.Max)
	}
	return n
}

// ParseList parses a list such as n1:2,n2,[fd00::1]:4. A host without a number has one slot. If a
// host is listed twice, its slots are added. "*" or "auto" in place of a number means one slot per
// core.
func ParseList(list string) ([]Host, error) {
	var hosts []Host
	for entry := range strings.SplitSeq(list, ",") {
		name, slots, has, err := splitHost(entry)
		if err != nil {
			return nil, err
		}
		h := Host{Name: name, Slots: 1}
		switch {
		case has && (slots == "*" || slots == "auto"):
			h.Slots = 0
		case has:
			if h.Slots, err = number(slots); err != nil {
				return nil, fmt.Errorf("host %q: slots: %w", name, err)
			}
		}
		if i := find(hosts, name); i < 0 {
			hosts = append(hosts, h)
		} else if hosts[i].Slots == 0 || h.Slots == 0 {
			return nil, fmt.Errorf("host %q: got two entries, at least one of them with a slot per core (* or auto); want one entry", name)
		} else {
			hosts[i].Slots += h.Slots
		}
	}
	if len(hosts) > MaxHosts {
		return nil, fmt.Errorf("got %d hosts, want at most %d", len(hosts), MaxHosts)
	}
	return hosts, nil
}

// Select returns the hosts of list, each of which must also be in file, the host file. A host has
// the slots that list gives. If list gives "*" or "auto", the host has the slots of file.
func Select(file, list []Host) ([]Host, error) {
	list = slices.Clone(list)
	for i := range list {
		j := find(file, list[i].Name)
		if j < 0 {
			return nil, fmt.Errorf("got host %q, want one of the host file: add it there, or leave out the host file", list[i].Name)
		}
		list[i].Max = file[j].Max
		if list[i].Slots == 0 {
			list[i].Slots = file[j].Slots
		}
	}
	return list, nil
}

// find returns the index of the host with the given name, or -1.
func find(hosts []Host, name string) int {
	return slices.IndexFunc(hosts, func(h Host) bool { return h.Name == name })
}

// splitHost splits name[:slots]. An IPv6 address with slots has brackets; without slots it needs
// none.
func splitHost(entry string) (name, slots string, has bool, err error) {
	if rest, ok := strings.CutPrefix(entry, "["); ok {
		if name, rest, ok = strings.Cut(rest, "]"); !ok {
			return "", "", false, fmt.Errorf("got %q, want a ']' after the address", entry)
		}
		if slots, has = strings.CutPrefix(rest, ":"); !has && rest != "" {
			return "", "", false, fmt.Errorf("got %q, want ':' and the slots after ']'", entry)
		}
	} else if strings.Count(entry, ":") > 1 {
		name = entry
	} else {
		name, slots, has = strings.Cut(entry, ":")
	}
	return name, slots, has, checkName(name)
}

// checkName refuses a name that ssh could take for an option, or that no host can have.
func checkName(name string) error {
	if name == "" {
		return fmt.Errorf("got an empty host name, want HOST or HOST:SLOTS")
	}
	bad := strings.IndexFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._:@%", c)
	})
	if bad >= 0 || name[0] == '-' {
		return fmt.Errorf("got host name %q, want letters, digits, and '-', '.', '_', ':', '@' or '%%', not beginning with '-'", name)
	}
	return nil
}

// number parses a number of slots.
func number(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxSlots {
		return 0, fmt.Errorf("got %.40q, want a number from 1 to %d", s, maxSlots)
	}
	return n, nil
}

// Merge adds up the slots of hosts that are listed several times. All names for which isHere
// returns true mean the same host, which keeps the first of these names. Merge reuses the array of
// hosts.
func Merge(hosts []Host, isHere func(name string) bool) []Host {
	merged, at := hosts[:0], make(map[string]int)
	for _, h := range hosts {
		key := h.Name
		if isHere(key) {
			key = "" // no host has this name
		}
		i, ok := at[key]
		switch {
		case !ok:
			at[key] = len(merged)
			merged = append(merged, h)
			continue
		case merged[i].Slots == 0 || h.Slots == 0:
			merged[i].Slots = 0 // one per core, whatever slots other entries give
		default:
			merged[i].Slots += h.Slots
		}
		merged[i].Max = max(merged[i].Max, h.Max)
	}
	return merged
}

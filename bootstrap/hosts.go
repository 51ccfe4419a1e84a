package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/internal/vars"
)

// maxText bounds the size, in bytes, of a list of hosts or a TF_CONFIG.
const maxText = 4 << 20

// hosts reads a static list of addresses, one per rank in rank order. The ranks need not exchange
// their addresses, so they may start in any order.
//
// The rank is TUTTI_RANK, or else the index of the one entry that is an address of this machine. If
// each host has one rank, all processes can therefore be started with the same environment.
// TUTTI_SIZE is not needed. If it is set, it must match the list.
func (f *finder) hosts() (*Job, error) {
	text, ok := f.get(vars.Hosts)
	if !ok {
		return nil, nil
	}
	peers, err := parseHosts(text)
	if err != nil {
		return nil, badVariable(unknown, vars.Hosts, text, err.Error(), "list one host:port per rank, separated by commas")
	}
	if size, ok, err := f.number(unknown, vars.Size, 1, MaxRanks); err != nil {
		return nil, err
	} else if ok && size != len(peers) {
		return nil, refuse(unknown, "%s=%d, but %s lists %d addresses: correct one, or unset %s", vars.Size, size, vars.Hosts, len(peers), vars.Size)
	}
	rank, ok, err := f.number(unknown, vars.Rank, 0, int64(len(peers))-1)
	if err != nil {
		return nil, err
	}
	source := vars.Hosts + ", " + vars.Rank
	if !ok {
		if rank, err = f.ownEntry(peers); err != nil {
			return nil, err
		}
		source = vars.Hosts + ", this machine's addresses"
	}
	j := jobOfList(source, "hosts", rank, peers)
	return j, f.identity(j)
}

// jobOfList returns the job of a rank if the addresses of all ranks are known. Two ranks count as
// ranks of one host if the list spells their hosts the same. The spelling is equal on all ranks,
// which the result of a lookup might not be. The job's name is derived from the list.
func jobOfList(source, kind string, rank int, peers []string) *Job {
	j := newJob(source)
	j.Rank, j.Size, j.Peers = rank, len(peers), peers
	// All ranks read the same list. A rank with a different list gets a different job name, and the
	// other ranks refuse it.
	j.Name = nameFrom(kind, strings.Join(peers, ","))
	own, _, _ := net.SplitHostPort(peers[rank])
	j.LocalRank, j.LocalSize = 0, 0
	for r, p := range peers {
		if h, _, _ := net.SplitHostPort(p); h == own {
			j.LocalSize++
			if r < rank {
				j.LocalRank++
			}
		}
	}
	return j
}

// parseHosts splits a comma separated list, and checks each entry. It allows white space around
// entries. It also allows an empty last entry, because scripts often end the list with a comma.
func parseHosts(text string) ([]string, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("has more than %d bytes", maxText)
	}
	text = strings.TrimSuffix(strings.TrimSpace(text), ",")
	entries := strings.Split(text, ",")
	if len(entries) > MaxRanks {
		return nil, fmt.Errorf("lists more than %d addresses", MaxRanks)
	}
	for i, e := range entries {
		entries[i] = strings.TrimSpace(e)
	}
	return entries, checkPeers(entries)
}

// checkPeers checks that every address is valid, and that no address occurs twice. Two ranks cannot
// listen on one address, and a repeated entry is usually a typing error.
func checkPeers(peers []string) error {
	if len(peers) == 0 {
		return errors.New("lists no address")
	}
	seen := make(map[string]int, len(peers))
	for i, p := range peers {
		if err := checkAddr(p); err != nil {
			return fmt.Errorf("is wrong in entry %d: %.80q %w", i, p, err)
		}
		if first, ok := seen[p]; ok {
			return fmt.Errorf("lists %.80q twice, for ranks %d and %d", p, first, i)
		}
		seen[p] = i
	}
	return nil
}

// ownEntry returns the index of the one entry that is this machine:
//
//	entry           matches                                       precedence
//	an IP address   an address of this machine                    full
//	a name          this machine's name, whatever the case        full
//	a name          the same name up to the first dot             only without a full match
//
// It resolves no names. If no entry matches, or several entries match fully, the error asks for
// TUTTI_RANK.
func (f *finder) ownEntry(peers []string) (int, error) {
	var full, short []int
	name := strings.ToLower(f.host())
	label, _, _ := strings.Cut(name, ".")
	own := f.ownAddrs() // if there are none, an entry can still match by name
	for r, p := range peers {
		host, _, _ := net.SplitHostPort(p)
		host = strings.ToLower(host)
		first, _, _ := strings.Cut(host, ".")
		a, err := netip.ParseAddr(host)
		switch {
		case err == nil && slices.Contains(own, a.Unmap()), err != nil && host == name:
			full = append(full, r)
		case err != nil && first == label:
			short = append(short, r)
		}
	}
	if len(full) == 0 {
		full = short
	}
	if len(full) == 1 {
		return full[0], nil
	}
	why := "no entry of %s is an address or the name of this machine (%s)"
	if len(full) > 1 {
		why = fmt.Sprintf("entries %d and %d of %%s are both this machine (%%s)", full[0], full[1])
	}
	return 0, refuse(unknown, why+": set %s to this process's rank, which is its index in the list, counted from 0", vars.Hosts, f.host(), vars.Rank)
}

// ownAddrs returns this machine's addresses, without zones. It returns none if they cannot be
// listed.
func (f *finder) ownAddrs() []netip.Addr {
	addrs, _ := f.addrs()
	var own []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap().WithZone(""))
		}
	}
	return own
}

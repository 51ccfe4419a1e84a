package ps

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// withLostParts adds the parts of this client's tensors that are lost to an error about the end of
// servers. It returns another error unchanged. A part is lost with the server that its link leads to,
// because a part of which there are other copies has another link by now. cl.mu is held.
func (cl *Client) withLostParts(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.PeerLost && f.Kind != fault.Closed && f.Kind != fault.Revoked {
		return err
	}
	lost := make(map[*link]bool)
	for r, l := range cl.links {
		lost[l] = slices.ContainsFunc(f.Peers, func(p fault.Peer) bool { return p.Rank == cl.n.worldRank(r) })
	}
	var tensors []string
	for _, name := range slices.Sorted(maps.Keys(cl.tensors)) {
		d := cl.tensors[name]
		var parts []int
		for i := range d.parts {
			if lost[d.parts[i].link] {
				parts = append(parts, i)
			}
		}
		if len(parts) > 0 {
			tensors = append(tensors, fmt.Sprintf("%s of %s", ranges(parts), name))
		}
	}
	if len(tensors) == 0 {
		return err
	}
	if n := len(tensors); n > maxListed {
		tensors = append(tensors[:maxListed], fmt.Sprintf("parts of %d more tensors", n-maxListed))
	}
	end, what := "the server has ended", "lost parts"
	if f.Kind == fault.Revoked {
		end, what = "a rank that serves has left early", "its parts"
	}
	cause := f.Err
	if cause == nil {
		cause = errors.New(end)
	}
	with := *f
	with.Err = fmt.Errorf("%w; %s: %s; if a snapshot was taken, Client.Restore brings it back in a new job", cause, what, strings.Join(tensors, "; "))
	return &with
}

// maxListed bounds the tensors, and the ranges of parts of each, in an error.
const maxListed = 8

// ranges returns the text of ascending numbers: "0-3, 5, 7-9".
func ranges(numbers []int) string {
	var list []string
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && numbers[end+1] == numbers[end]+1 {
			end++
		}
		if len(list) == maxListed {
			list = append(list, fmt.Sprintf("and %d more", len(numbers)-i))
			break
		}
		text := strconv.Itoa(numbers[i])
		if end > i {
			text += "-" + strconv.Itoa(numbers[end])
		}
		list = append(list, text)
		i = end + 1
	}
	return strings.Join(list, ", ")
}

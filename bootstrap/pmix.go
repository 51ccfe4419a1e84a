package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/tutti-go/tutti/bootstrap/internal/pmix"
	"github.com/tutti-go/tutti/internal/vars"
)

// pmix finds a launcher with a PMIx server on each host. A server that listens on loopback only
// counts as private, because only processes of this host reach it. A process of another user on
// this host could still lie to the server about its user.
func (f *finder) pmix() (*Job, error) {
	if !pmix.Present(f.lookup) {
		return nil, nil
	}
	j, err := f.meetBy("pmix", "PMIx", pmix.Local(f.lookup), func(ctx context.Context) (launcherStore, error) {
		return pmix.Dial(ctx, f.lookup)
	})
	if err == nil && j.meeting != nil && !f.has(vars.Bootstrap) {
		j.meeting.otherwise = f.withoutPMIx
	}
	return j, err
}

// withoutPMIx returns the job that a later source describes, if it has the rank and the size that
// the launcher of a PMIx server has set. Otherwise it returns nil: the variables of that source may
// belong to an outer job.
func (f *finder) withoutPMIx() *Job {
	rank, _, err := f.number(unknown, "PMIX_RANK", 0, MaxRanks-1)
	if err != nil {
		return nil
	}
	size := f.launchedSize()
	later := false
	for _, s := range sources() {
		if later && s.name != "single" {
			j, err := s.find(f)
			if err != nil || j != nil && (j.Rank != rank || j.Size != size) {
				return nil
			}
			if j != nil {
				return j
			}
		}
		later = later || s.name == "pmix"
	}
	return nil
}

// launchedSize returns the number of ranks by the variable of a launcher, or 0. It ignores srun's
// variables under an mpirun that has started its daemons by srun, because these variables describe
// the daemons.
func (f *finder) launchedSize() int {
	for _, l := range vars.Launchers() {
		if l.Size == "" || l.Size == vars.TorchSize || l.Requires != "" && !f.has(l.Requires) {
			continue
		}
		if n, ok, err := f.number(unknown, l.Size, 1, MaxRanks); ok && err == nil {
			return n
		}
	}
	return 0
}

// meetOtherwise completes the job by a source that needs no store, if the launcher's store cannot
// be reached. It returns the error of the store if there is no such source, or if the store has
// answered, because the other ranks may then be waiting in the store.
func (m *meeting) meetOtherwise(ctx context.Context, j *Job, dialErr error) (*Job, error) {
	if end, limited := ctx.Deadline(); limited && time.Until(end) <= 0 {
		<-ctx.Done() // the dialer has its own timer for the deadline, and may see it before ctx does
	}
	err := j.meetingError(ctx, dialErr)
	var plain *Job
	var network *net.OpError
	if m.otherwise != nil && ctx.Err() == nil && errors.As(dialErr, &network) && network.Op == "dial" {
		plain = m.otherwise()
	}
	if plain == nil {
		return nil, err
	}
	j.Rank, j.Size, j.LocalRank, j.LocalSize, j.Role = plain.Rank, plain.Size, plain.LocalRank, plain.LocalSize, plain.Role
	j.Root, j.Peers = plain.Root, plain.Peers
	j.Name, j.Incarnation, j.Source = plain.Name, plain.Incarnation, plain.Source
	j.Warnings = append(j.Warnings, fmt.Sprintf("using %s, because: %v", j.Source, err))
	otherErr := m.finder.role(j)
	if otherErr == nil {
		otherErr = m.finder.checkAlone(j)
	}
	if otherErr == nil {
		otherErr = m.finder.protect(j, m.options, false, "")
	}
	if otherErr != nil {
		return nil, refuse(j.Rank, "%w; and by %s instead: %w", err, j.Source, otherErr)
	}
	return j, nil
}

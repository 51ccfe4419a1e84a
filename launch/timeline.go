package launch

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/internal/timeline"
)

// prepareTimeline creates the file and removes the parts of an earlier job. If the timeline cannot
// be written, it fails, and so the job does not start.
func prepareTimeline(file string, ranks int) (path string, err error) {
	if path, err = filepath.Abs(file); err != nil {
		return "", err
	}
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	removeParts(path, ranks) // removes the parts that an earlier job left
	return path, f.Close()
}

// partNames returns the names of the parts that a rank may have.
func partNames(file string, rank int) [2]string {
	return [...]string{timeline.PartName(file, rank), timeline.PSPartName(file, rank)}
}

// removeParts removes the parts of all ranks.
func removeParts(file string, ranks int) {
	for r := range ranks {
		for _, part := range partNames(file, r) {
			os.Remove(part)
		}
	}
}

// timelineParts holds the parts next to a timeline's file, by rank.
type timelineParts struct {
	files  []string // the parts that were written
	empty  []int    // the ranks of which a part exists and is empty
	absent []int    // the ranks without a part
}

// findParts looks for the parts of all ranks.
func findParts(file string, ranks int) (p timelineParts) {
	for r := range ranks {
		written, created := 0, 0
		for _, part := range partNames(file, r) {
			info, err := os.Stat(part)
			if err != nil {
				continue
			}
			created++
			if info.Size() > 0 {
				written++
				p.files = append(p.files, part)
			}
		}
		switch {
		case created == 0:
			p.absent = append(p.absent, r)
		case written < created:
			p.empty = append(p.empty, r)
		}
	}
	return p
}

// missing lists the ranks whose part is empty or absent.
func (p *timelineParts) missing() []int {
	return slices.Sorted(slices.Values(slices.Concat(p.empty, p.absent)))
}

// mergeTimeline merges the parts into one file and removes them. It returns notes for the user. It
// returns an error if the timeline cannot be written, or if a rank that ended well has left its
// part empty. The parts then stay on disk for --merge-timeline.
//
//	a rank's part  the rank ended well       the rank failed
//	written        merged                    merged
//	empty          error: it was not         note: killed before it could write
//	               written
//	absent         note: no coordinator      the same note
//
// A rank may have two parts: one of its coordinator, and one of its parameter server or client. A rank
// with one of them is not absent.
//
// If the rank ran on another host, the note for an absent part says that the part may be on that
// host.
func mergeTimeline(file string, ranks int, endedWell, elsewhere func(rank int) bool) (notes []string, err error) {
	p := findParts(file, ranks)
	unseen := slices.DeleteFunc(slices.Clone(p.absent), func(r int) bool { return !elsewhere(r) })
	if len(unseen) > 0 {
		notes = append(notes, fmt.Sprintf("the timeline %s lacks %s: no part is in its directory here, want a directory that all hosts share", file, rankList(unseen)))
	}
	unwritten := slices.DeleteFunc(slices.Clone(p.empty), func(r int) bool { return !endedWell(r) })
	missing := slices.DeleteFunc(p.missing(), func(r int) bool { return slices.Contains(unseen, r) })
	if len(p.files) > 0 && len(missing) > 0 {
		notes = append(notes, fmt.Sprintf("the timeline %s lacks %s: killed, or without a coordinator or ps.Client", file, rankList(missing)))
	}
	if len(p.files) > 0 {
		if err := mergeFiles(file, p.files); err != nil {
			return notes, fmt.Errorf("the timeline %s is not written: %w; its parts %[1]s.rank* are kept for --merge-timeline", file, err)
		}
	}
	if len(unwritten) > 0 {
		return notes, fmt.Errorf("the timeline %s lacks %s, which ended without writing a part: look for a warning (a full disk?), and have the program close its coordinator or ps.Client", file, rankList(unwritten))
	}
	// Without any coordinator there is nothing to merge, and the file stays empty.
	if len(p.files) == 0 {
		if len(unseen) == 0 {
			notes = append(notes, "the timeline "+file+" is empty: no rank has started and closed a coordinator or a ps.Client")
		}
		return notes, nil
	}
	removeParts(file, ranks)
	return notes, nil
}

// mergeFiles merges parts into file. If it cannot write the whole timeline, it leaves the file
// empty.
func mergeFiles(file string, parts []string) error {
	var readers []io.Reader
	for _, p := range parts {
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		readers = append(readers, f)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	err = timeline.Merge(out, readers...)
	if err != nil {
		out.Truncate(0) // a partial timeline is useless
	}
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}

// mergeParts merges the parts of a job that this launcher has not started. It assumes that the
// highest rank with a part is the last rank of the job.
func mergeParts(file string) error {
	names, err := filepath.Glob(escapeGlob(file) + ".rank*")
	if err != nil {
		return err
	}
	ranks := 0
	for _, n := range names {
		if r, err := strconv.Atoi(strings.TrimSuffix(n[len(file)+len(".rank"):], timeline.PSSuffix)); err == nil && r >= 0 && r < MaxRanks {
			ranks = max(ranks, r+1)
		}
	}
	p := findParts(file, ranks)
	if len(p.files) == 0 {
		return fmt.Errorf("got no part of %s, want %[1]s.rank0 and so on", file)
	}
	if missing := p.missing(); len(missing) > 0 {
		return fmt.Errorf("got %d parts %s.rank*; missing or empty: %s", len(p.files), file, rankList(missing))
	}
	return mergeFiles(file, p.files)
}

// escapeGlob escapes the characters that have a meaning in a pattern.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// rankList returns "rank 3", or "ranks 0, 1, 4", with at most 16 numbers.
func rankList(ids []int) string {
	if len(ids) == 1 {
		return fmt.Sprintf("rank %d", ids[0])
	}
	var b strings.Builder
	b.WriteString("ranks ")
	for i, id := range ids {
		if i == 16 {
			fmt.Fprintf(&b, " and %d more", len(ids)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, id)
	}
	return b.String()
}

package launch

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/internal/timeline"
)

// prepareTimeline creates the file and removes the parts of an earlier job. It fails before the
// job starts if the timeline cannot be written.
func prepareTimeline(file string, ranks int) (path string, err error) {
	if path, err = filepath.Abs(file); err != nil {
		return "", err
	}
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	for r := range ranks {
		os.Remove(timeline.PartName(path, r)) // left by an earlier job
	}
	return path, f.Close()
}

// timelineParts returns the parts beside a timeline's file, by rank, and the ranks without one.
func timelineParts(file string, ranks int) (parts []string, missing []int) {
	for r := range ranks {
		part := timeline.PartName(file, r)
		if info, err := os.Stat(part); err != nil || info.Size() == 0 { // the part of a rank that was killed is empty
			missing = append(missing, r)
			continue
		}
		parts = append(parts, part)
	}
	return parts, missing
}

// mergeTimeline merges the parts into one file and removes them. It returns notes for the user.
// A failure is no error of the job: it stays in the notes, and the parts stay on disk for
// --merge-timeline.
func mergeTimeline(file string, ranks int) (notes []string) {
	parts, missing := timelineParts(file, ranks)
	switch {
	// Without any coordinator there is nothing to merge. The file stays, empty.
	case len(parts) == 0:
		return []string{"the timeline " + file + " is empty: no rank has started and closed a coordinator"}
	case len(missing) > 0:
		notes = append(notes, fmt.Sprintf("the timeline %s lacks %s: killed, or without a coordinator", file, rankList(missing)))
	}
	if err := mergeFiles(file, parts); err != nil {
		return append(notes, fmt.Sprintf("merge the timeline %s: %v", file, err))
	}
	for r := range ranks {
		os.Remove(timeline.PartName(file, r))
	}
	return notes
}

// mergeFiles merges parts into file.
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
		if r, err := strconv.Atoi(n[len(file)+len(".rank"):]); err == nil && r >= 0 && r < MaxRanks {
			ranks = max(ranks, r+1)
		}
	}
	parts, missing := timelineParts(file, ranks)
	if len(parts) == 0 {
		return fmt.Errorf("got no part of %s, want %[1]s.rank0 and so on", file)
	}
	if len(missing) > 0 {
		return fmt.Errorf("got %d parts %s.rank*; missing or empty: %s", len(parts), file, rankList(missing))
	}
	return mergeFiles(file, parts)
}

// escapeGlob escapes what has a meaning in a pattern.
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

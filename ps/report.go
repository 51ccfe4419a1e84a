package ps

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tutti-go/tutti/internal/vars"
	"github.com/tutti-go/tutti/ps/internal/part"
)

// A TensorStats counts what a server has done for one tensor or table.
type TensorStats struct {
	Name          string
	Mode          string // "synchronous", "asynchronous", "bounded(3)"
	Parts         int    // on this server, as are the following
	Keys          int64  // elements of a tensor, or rows of a table
	Bytes         int64  // of values and optimizer state
	Pushes, Pulls uint64 // requests: one for each part
	Waiting       int    // requests that wait in a part, mostly for pushes of other workers
	Lag           uint64 // staleness: by how many pushes the slowest worker is behind the fastest one, in any part
}

// modeName returns the text of a mode in tables and errors.
func modeName(m part.Mode, staleness int) string {
	switch m {
	case part.Synchronous:
		return "synchronous"
	case part.Asynchronous:
		return "asynchronous"
	}
	return fmt.Sprintf("bounded(%d)", staleness)
}

// addStats adds what the part has done.
func (p *shard) addStats(t *TensorStats) {
	t.Name, t.Mode = p.spec.Name, modeName(p.spec.Mode, p.spec.Staleness)
	t.Parts++
	t.Keys += p.keys.Load()
	t.Bytes += p.bytes.Load()
	t.Pushes += p.pushes.Load()
	t.Pulls += p.pulls.Load()
	t.Waiting += int(p.waiting.Load())
	t.Lag = max(t.Lag, p.lag.Load())
}

// sortedStats returns the values of a map in the order of the names.
func sortedStats(tensors map[uint32]*TensorStats) []TensorStats {
	list := make([]TensorStats, 0, len(tensors))
	for _, t := range tensors {
		list = append(list, *t)
	}
	slices.SortFunc(list, func(a, b TensorStats) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// reportInterval returns what the environment asks for, or 0.
func reportInterval() (time.Duration, error) {
	text := os.Getenv(vars.ReportServers)
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s: got %q, want a positive duration like 10s", vars.ReportServers, text)
	}
	return d, nil
}

// reportLimit is how long the end of a server waits for its last table, because the writer may block.
const reportLimit = time.Second

// report writes a table at each interval, until the server ends.
func (s *Server) report(w io.Writer, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	began := time.Now()
	last, at := s.Stats(), began
	for {
		select {
		case <-tick.C:
		case <-s.n.ctx.Done():
			return
		}
		st, now := s.Stats(), time.Now()
		io.WriteString(w, reportTable(s.n.worldRank(s.n.c.Rank()), now.Sub(began), now.Sub(at), &last, &st))
		last, at = st, now
	}
}

// reportTable returns the table of a server: totals, and a line for each tensor. Rates are those since
// the last table.
func reportTable(rank int, age, interval time.Duration, last, st *Stats) string {
	seconds := interval.Seconds()
	var b strings.Builder
	fmt.Fprintf(&b, "tutti: ps: server rank %d after %v: %d tensors, %d parts, %s; %s/s in, %s/s out, %d requests queued\n", rank, age.Round(time.Second),
		st.Tensors, st.Parts, size(st.Bytes), size(int64(float64(st.Received-last.Received)/seconds)), size(int64(float64(st.Sent-last.Sent)/seconds)), st.Queued)
	before := make(map[string]*TensorStats)
	for i := range last.ByTensor {
		before[last.ByTensor[i].Name] = &last.ByTensor[i]
	}
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "mode\tparts\tkeys\tbytes\tpushes/s\tpulls/s\twaiting\tlag\t  tensor\n")
	for _, t := range st.ByTensor {
		old := before[t.Name]
		if old == nil {
			old = new(TensorStats)
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%.1f\t%.1f\t%d\t%d\t  %s\n", t.Mode, t.Parts, t.Keys, size(t.Bytes),
			float64(t.Pushes-old.Pushes)/seconds, float64(t.Pulls-old.Pulls)/seconds, t.Waiting, t.Lag, t.Name)
	}
	table.Flush()
	return b.String()
}

// size returns a number of bytes as text: "812.4 MB".
func size(bytes int64) string {
	units := []string{"kB", "MB", "GB", "TB"}
	x, unit := float64(bytes), "B"
	for len(units) > 0 && x >= 1000 {
		x, unit, units = x/1000, units[0], units[1:]
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", x, unit)
}

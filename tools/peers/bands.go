package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A band is a range of sizes, from the given number of bytes up to the next band. The geometric
// mean of the ratios of these sizes should be at least floor.
type band struct {
	from  int
	floor float64
}

// parseBands parses "4:1.3,1024:2".
func parseBands(text string) ([]band, error) {
	var all []band
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		from, floor, _ := strings.Cut(part, ":")
		bytes, err1 := strconv.Atoi(from)
		ratio, err2 := strconv.ParseFloat(floor, 64)
		if err1 != nil || err2 != nil || bytes < 0 || ratio <= 0 {
			return nil, fmt.Errorf("-require %q: want BYTES:RATIO,..., such as 4:1.3,1024:2", part)
		}
		all = append(all, band{bytes, ratio})
	}
	slices.SortFunc(all, func(a, b band) int { return a.from - b.from })
	return all, nil
}

// means returns the geometric mean of the table's ratios in each band.
func (t *table) means(bands []band) []float64 {
	var all []float64
	for i, b := range bands {
		end := math.MaxInt
		if i+1 < len(bands) {
			end = bands[i+1].from
		}
		all = append(all, t.mean(b.from, end))
	}
	return all
}

// checkFloors prints each band. It returns an error if a band is below its floor, or if only tutti,
// or only its peers, ran a size. Without the second check, a peer that fails would make tutti look
// better.
func (t *table) checkFloors(out io.Writer, bands []band) error {
	var short []string
	if lonely := t.unmatched(); len(lonely) > 0 && len(bands) > 0 {
		short = append(short, fmt.Sprintf("sizes without a partner %v", lonely))
	}
	for i, got := range t.means(bands) {
		fmt.Fprintf(out, "from %d bytes: %.2f (asked %g)\n", bands[i].from, got, bands[i].floor)
		if !(got >= bands[i].floor) {
			short = append(short, fmt.Sprintf("%d: %.2f < %g", bands[i].from, got, bands[i].floor))
		}
	}
	if len(short) > 0 {
		return fmt.Errorf("below its floors: %s", strings.Join(short, "; "))
	}
	return nil
}

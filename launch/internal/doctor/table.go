package doctor

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// Print writes a report as tables: hosts, interfaces, devices, links, notes and faults. A host's
// texts are not trusted: they can neither begin a further cell or line, nor send control characters
// to the terminal.
func Print(w io.Writer, r *Examination) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		for i := range cells {
			cells[i] = strings.Map(graphic, cells[i])
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")) // Flush returns the errors
	}
	part := func(header ...string) { row(); row(header...) }

	row("HOST", "NAME", "VERSION", "CLOCK", "CORES", "FILES", "LOCKED", "SHM FREE")
	for _, h := range r.Hosts {
		if f := h.Facts; f != nil {
			row(h.Name, f.Hostname, fmt.Sprintf("%s %.7s", f.Version, f.Commit), clockText(h.Clock), coresText(f), limitText(f.OpenFiles, func(n int64) string { return strconv.FormatInt(n, 10) }), limitText(f.LockedMemory, amount), shmText(f.Shm))
		} else {
			row(h.Name, "no answer")
		}
	}
	if slices.ContainsFunc(r.Hosts, func(h *HostReport) bool { return h.Listening != nil }) {
		part("HOST", "ADDRESS", "INTERFACE", "MTU", "SPEED", "WHY")
	}
	for _, h := range r.Hosts {
		if l := h.Listening; l != nil {
			row(h.Name, l.Address, l.Interface, mtuText(l.MTU), speedText(l.Speed), l.Why)
		}
	}
	if slices.ContainsFunc(r.Hosts, func(h *HostReport) bool { return h.Facts != nil && len(h.Facts.Devices) > 0 }) {
		part("HOST", "RDMA DEVICE", "STATE", "RATE", "GIDS")
	}
	for _, h := range r.Hosts {
		if h.Facts == nil {
			continue
		}
		for _, d := range h.Facts.Devices {
			gids := append(d.GIDs, "")
			row(h.Name, fmt.Sprintf("%s port %d, %s", d.Name, d.Port, d.Network), d.State, d.Rate, gids[0])
			for _, gid := range d.GIDs[min(len(d.GIDs), 1):] {
				row("", "", "", "", gid)
			}
		}
	}
	if len(r.Pairs) > 0 {
		part("FROM", "TO", "ADDRESS", "PATH MTU", "LATENCY", "BANDWIDTH", "LINK")
	}
	for _, l := range r.Pairs {
		if l.Trouble != "" {
			row(l.From, l.To, l.Address, "-", "-", "-", "fault: "+l.Trouble)
			continue
		}
		row(l.From, l.To, l.Address, mtuText(l.PathMTU), latencyText(l.Latency), bandwidthText(l), speedText(l.Speed))
	}
	row()
	for _, note := range r.Notes {
		row("note: " + note)
	}
	for _, f := range r.Faults {
		row("FAULT: " + f.Host + ": " + f.What)
		row("       " + f.Remedy)
	}
	row(count(len(r.Faults), "fault") + " on " + count(len(r.Hosts), "host"))
	return t.Flush()
}

// unknown fills a cell whose value the system does not report, or that was not measured.
const unknown = "-"

// clockText formats the offset of a clock.
func clockText(c *Clock) string {
	if c == nil {
		return unknown
	}
	if c.Offset.Abs() >= 10*time.Second {
		return fmt.Sprintf("%+.0f s", c.Offset.Seconds())
	}
	return fmt.Sprintf("%+.1f ms", float64(c.Offset)/float64(time.Millisecond))
}

// graphic replaces a character that is not printable by a question mark. Tabs and newlines, which
// end a cell, are among these characters.
func graphic(c rune) rune {
	if unicode.IsGraphic(c) {
		return c
	}
	return '?'
}

// coresText formats how many of the host's cores ranks may use.
func coresText(f *Facts) string {
	text := fmt.Sprintf("%d of %d", len(f.UsableCores), f.OnlineCores)
	if len(f.UsableCores) == 0 {
		text = strconv.Itoa(f.OnlineCores)
	}
	if f.Quota > 0 {
		text += fmt.Sprintf(", quota %.2g", f.Quota)
	}
	return text
}

// limitText formats a limit.
func limitText(n *int64, format func(int64) string) string {
	switch {
	case n == nil:
		return unknown
	case *n < 0:
		return "unlimited"
	}
	return format(*n)
}

// shmText formats how much of /dev/shm is free.
func shmText(s *Shm) string {
	switch {
	case s == nil:
		return unknown
	case s.Error != "":
		return "fault"
	}
	return amount(s.Free)
}

// mtuText formats an MTU.
func mtuText(n int) string {
	if n <= 0 {
		return unknown
	}
	return strconv.Itoa(n)
}

// speedText formats the speed of an interface.
func speedText(mbps int) string {
	switch {
	case mbps <= 0:
		return unknown
	case mbps < 1000:
		return fmt.Sprintf("%d Mb/s", mbps)
	}
	return fmt.Sprintf("%.4g Gb/s", float64(mbps)/1000)
}

// latencyText formats a latency.
func latencyText(d time.Duration) string {
	if d == 0 {
		return unknown
	}
	return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond))
}

// bandwidthText formats a bandwidth, and which part of the link's speed it is.
func bandwidthText(l *Pair) string {
	if l.Bandwidth == 0 {
		return unknown
	}
	mbps := l.Bandwidth * 8 / 1e6
	text := fmt.Sprintf("%.2f Gb/s", mbps/1000)
	if mbps < 1000 {
		text = fmt.Sprintf("%.1f Mb/s", mbps)
	}
	if l.Speed > 0 {
		text += fmt.Sprintf(" (%.0f%%)", 100*mbps/float64(l.Speed))
	}
	return text
}

// count formats a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

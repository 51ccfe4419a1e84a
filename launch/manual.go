package launch

import (
	"fmt"
	"strings"
)

// manual returns the manual page of tuttirun, with the macros of man(7).
func manual() string {
	var b strings.Builder
	section := func(title string) { b.WriteString(".SH " + title + "\n") }
	paragraphs := func(text string) {
		for i, p := range strings.Split(strings.TrimSpace(text), "\n\n") {
			if i > 0 {
				b.WriteString(".PP\n")
			}
			b.WriteString(roff(p) + "\n")
		}
	}
	item := func(term, text string) { b.WriteString(".TP\n.B " + roff(term) + "\n" + roff(text) + "\n") }

	b.WriteString(".\\\" Written by: make docs\n.TH TUTTIRUN 1 \"\" tutti \"User Commands\"\n")
	section("NAME")
	b.WriteString("tuttirun \\- start the ranks of a job, and end them together\n")
	section("SYNOPSIS")
	b.WriteString(".B tuttirun\n[\\fIoptions\\fR] \\fIprogram\\fR [\\fIarguments\\fR] [\\fB:\\fR [\\fIoptions\\fR] \\fIprogram\\fR [\\fIarguments\\fR]] ...\n")
	section("DESCRIPTION")
	_, about, _ := strings.Cut(usageHead, "\n")
	paragraphs(strings.TrimRight(about, ":\n") + ".")
	b.WriteString(".PP\n")
	paragraphs(usageTail)
	section("OPTIONS")
	var ignored []string
	for _, o := range options() {
		var names []string
		for _, n := range o.names {
			names = append(names, dashed(n))
		}
		switch {
		case o.help != "":
			item(strings.TrimSpace(strings.Join(names, ", ")+" "+o.operand), o.help+".")
		case o.set == nil && o.rejected == "":
			ignored = append(ignored, names...)
		}
	}
	paragraphs("Options of other launchers that are accepted and ignored, most of them with a warning:\n" + strings.Join(ignored, ", ") + ".")
	section("ENVIRONMENT")
	item("NO_COLOR", "If this is set, and not empty, the prefixes of lines have no colours on a terminal.")
	item("TUTTI_*, OMPI_COMM_WORLD_*, PMI_*, RANK, WORLD_SIZE, LOCAL_RANK, HOROVOD_*", "tuttirun sets these for the ranks.")
	section("EXIT STATUS")
	for _, s := range exitCodes() {
		item(s[0], s[1])
	}
	section("EXAMPLES")
	for _, e := range [][2]string{
		{"tuttirun -np 4 ./hello", "Run four ranks on this host."},
		{"tuttirun -np 1 --role chief ./train : -np 3 ./train", "Run two programs, or one program in two ways, as one job of four ranks."},
		{"tuttirun -l --timeout 1h --output-filename out ./train", "Run one rank per processor for at most an hour. Print and keep what each of them writes."},
	} {
		item(e[0], e[1])
	}
	section("SEE ALSO")
	b.WriteString(".BR mpirun (1),\n.BR mpiexec (1),\nhttps://github.com/tutti\\-go/tutti/blob/main/docs/launchers.md\n")
	return b.String()
}

// exitCodes returns the exit codes of tuttirun and their meanings. The package comment lists them,
// too.
func exitCodes() [][2]string {
	return [][2]string{
		{"0", "Every rank exited with 0; with --enable-recovery, at least one rank did."},
		{"1 to 255", "The exit code of the first rank that failed, or 128+n if signal n ended it."},
		{"128+n", "Signal n asked the job to end, and no rank failed by itself."},
		{fmt.Sprint(exitUnwritten), "A timeline or a file of output could not be written, or ranks waited for a rank that never called Init, or too few ranks were left."},
		{fmt.Sprint(exitUsage), "The command line is wrong."},
		{fmt.Sprint(exitTimeout), "The job has not ended within --timeout."},
		{fmt.Sprintf("%d, %d", exitNotRunning, exitNotFound), "A program cannot be executed, or does not exist."},
	}
}

// roff escapes text for a manual page.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		// A line that begins with a dot would be a roff request.
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

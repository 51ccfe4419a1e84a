package launch

import (
	"fmt"
	"path/filepath"
	"strings"
)

// The prefixes of lines that other launchers print.
const (
	rankPrefix  = "[%r] "         // mpiexec -l
	tagPrefix   = "[%j,%r]<%s>:"  // mpirun --tag-output
	tag5Prefix  = "[%j,%r]<%s>: " // Open MPI 5's --output tag
	rank5Prefix = "[%r]<%s>: "    // --output rank
	timePrefix  = "%t<%s>:"       // --timestamp-output
	rankDir     = "%j/rank.%R/"   // below DIR of --output-filename DIR
)

// outputOptions returns the options that say how output is written.
func outputOptions() []option {
	return []option{
		{names: []string{"l", "prepend-rank"}, help: "begin each line of output with its rank: [3] line",
			set: func(p *parser, _ []string) error { return p.prefix(rankPrefix) }},
		{names: []string{"tag-output"}, help: "the same in mpirun's way: [1,3]<stdout>:line",
			set: func(p *parser, _ []string) error { return p.prefix(tagPrefix) }},
		{names: []string{"prepend-pattern"}, args: 1, operand: "PATTERN", help: "begin lines like this: %r/%h: with %r for the rank, %h for the host, %s for stdout or stderr, %t for the time",
			set: func(p *parser, a []string) error { return p.prefix(a[0]) }},
		{names: []string{"timestamp-output", "prefix-output-with-timestamp", "prefix-timestamp"}, help: "begin lines with the time",
			set: func(p *parser, _ []string) error { p.timestamp = true; return nil }},
		{names: []string{"merge-stderr-to-stdout"}, help: "make standard error of each rank the same as its standard output",
			set: func(p *parser, _ []string) error { p.req.job.Output.Merge = true; return nil }},
		{names: []string{"output"}, args: 1, operand: "LIST", help: "several of tag, rank, timestamp, merge, dir=DIR, file=FILE; as in Open MPI 5",
			set: func(p *parser, a []string) error { return p.output(a[0]) }},
		{names: []string{"output-filename"}, args: 1, operand: "DIR", help: "write output to DIR/1/rank.0/stdout and so on, too; with DIR:nocopy, print only what cannot be written there",
			set: func(p *parser, a []string) error { return p.outputDir(a[0]) }},
		{names: []string{"outfile-pattern"}, args: 1, operand: "PATTERN", help: "write standard output to files like out.%r, and do not print it",
			set: func(p *parser, a []string) error { return p.outputFile(&p.req.job.Output.Stdout, a[0]) }},
		{names: []string{"errfile-pattern"}, args: 1, operand: "PATTERN", help: "the same for standard error",
			set: func(p *parser, a []string) error { return p.outputFile(&p.req.job.Output.Stderr, a[0]) }},
	}
}

// prefix sets the prefix of lines.
func (p *parser) prefix(pattern string) error {
	p.req.job.Output.Prefix = pattern
	return checkPattern(pattern)
}

// finishOutput adds the time to the prefix, in the form that mpirun prints.
func (p *parser) finishOutput() {
	o := &p.req.job.Output
	switch {
	case !p.timestamp:
	case o.Prefix == "":
		o.Prefix = timePrefix
	case o.Prefix[0] == '[':
		o.Prefix = "%t" + o.Prefix
	default:
		o.Prefix = "%t " + o.Prefix
	}
}

// outputFile sets the pattern of the files of one stream, as mpiexec does: a stream that has a file
// is not printed.
func (p *parser) outputFile(file *string, pattern string) error {
	if pattern == "" {
		return fmt.Errorf("got %q, want a name such as out.%%r", pattern)
	}
	*file, p.req.job.Output.FilesOnly = pattern, true
	return checkPattern(pattern)
}

// outputDir parses DIR[:nocopy,nojobid] and sets the files of both streams.
func (p *parser) outputDir(text string) error {
	o := &p.req.job.Output
	below := rankDir
	dir, qualifiers, ok := cutLast(text, ":")
	for q := range strings.SplitSeq(qualifiers, ",") {
		switch {
		case !ok:
		case strings.EqualFold(q, "nocopy"):
			o.FilesOnly = true
		case strings.EqualFold(q, "nojobid"):
			below = strings.TrimPrefix(below, "%j/")
		default:
			return fmt.Errorf("got %q after ':', want nocopy or nojobid", q)
		}
	}
	if dir == "" {
		return fmt.Errorf("got %q, want the name of a directory", text)
	}
	dir = strings.ReplaceAll(dir, "%", "%%")
	o.Stdout, o.Stderr = filepath.Join(dir, below+"stdout"), filepath.Join(dir, below+"stderr")
	return nil
}

// output parses the list of --output, as Open MPI 5 has it: "tag,dir=DIR:nocopy".
func (p *parser) output(list string) error {
	o := &p.req.job.Output
	list, qualifier, ok := cutLast(list, ":")
	switch {
	case !ok, strings.EqualFold(qualifier, "copy"):
	case strings.EqualFold(qualifier, "nocopy"):
		o.FilesOnly = true
	default:
		return fmt.Errorf("got %q after ':', want copy or nocopy", qualifier)
	}
	for directive := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(directive, "=")
		switch name = strings.ToLower(name); {
		case name == "tag":
			o.Prefix = tag5Prefix
		case name == "rank":
			o.Prefix = rank5Prefix
		case name == "timestamp":
			p.timestamp = true
		case name == "merge", name == "merge-stderr-to-stdout":
			o.Merge = true
		case name == "dir" && value != "":
			if err := p.outputDir(value); err != nil {
				return err
			}
		case name == "file" && value != "":
			o.Stdout = strings.ReplaceAll(value, "%", "%%") + ".%R"
			o.Stderr = o.Stdout
		default:
			return fmt.Errorf("got %q, want tag, rank, timestamp, merge, dir=DIR or file=FILE", directive)
		}
	}
	return nil
}

// cutLast cuts s at the last separator.
func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}

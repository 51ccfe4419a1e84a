// Command count measures the module: lines of product code and of comments per
// package, lines of test support, and exported names.
//
//	count [-packages] [DIR]
//
// It prints these totals of the module in DIR, by default the current directory:
//
//	product code   lines of the library with at least one token that is no comment
//	comments       lines of the library with nothing but comments; the share is
//	               comments / (comments + code)
//	support        all lines, blank ones and comments included, of the packages that
//	               only tests import
//	generated      lines of Go files that a program wrote ("Code generated"), and of
//	               assembly; neither is in any other total
//	exported       names that packages comm, coordinator and transport export
//
// The library is everything but tests, test support, commands, examples and tools, which have
// totals of their own. Files of all platforms and build tags count. Modules inside the module, such
// as the generator of assembly, do not. classes.go assigns each package to a class.
//
// An exported name is a top-level identifier, or a method of an exported type that is not an
// interface. Fields and interface methods do not count.
//
// With -packages it also prints the lines of each package.
package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

func main() {
	packages := flag.Bool("packages", false, "print the lines of each package")
	flag.Parse()
	dir := "."
	if flag.NArg() > 0 {
		dir = flag.Arg(0)
	}
	if err := run(os.Stdout, dir, *packages); err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, dir string, packages bool) error {
	m, err := measure(dir)
	if err != nil {
		return err
	}
	if packages {
		m.printPackages(out)
	}
	m.printTotals(out)
	for _, pkg := range []string{"comm", "coordinator", "transport"} {
		n, err := exportedNames(dir, pkg)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "exported %-16s %6d names: %d identifiers, %d methods\n", pkg, n.identifiers+n.methods, n.identifiers, n.methods)
	}
	return nil
}

func (m module) printPackages(out io.Writer) {
	fmt.Fprintf(out, "%-36s %-9s %8s %8s %8s %6s\n", "package", "class", "code", "comments", "lines", "share")
	for _, pkg := range slices.Sorted(maps.Keys(m.packages)) {
		n := m.packages[pkg]
		fmt.Fprintf(out, "%-36s %-9s %8d %8d %8d %5.1f%%\n", pkg, classOf(pkg), n.code, n.comments, n.all, n.share())
	}
	fmt.Fprintln(out)
}

func (m module) printTotals(out io.Writer) {
	totals := make(map[class]lines)
	for pkg, n := range m.packages {
		totals[classOf(pkg)] = totals[classOf(pkg)].plus(n)
	}
	p := totals[product]
	fmt.Fprintf(out, "product code              %6d lines\n", p.code)
	fmt.Fprintf(out, "product comments          %6d lines, %.1f%% of comments and code\n", p.comments, p.share())
	fmt.Fprintf(out, "support                   %6d lines in all, %d of code\n", totals[support].all, totals[support].code)
	for _, c := range []class{command, example, tool} {
		fmt.Fprintf(out, "%-24s  %6d lines of code\n", c, totals[c].code)
	}
	fmt.Fprintf(out, "tests                     %6d lines of code\n", m.tests.code)
	fmt.Fprintf(out, "generated Go              %6d lines of code\n", m.generated.code)
	fmt.Fprintf(out, "assembly                  %6d lines\n", m.assembly)
}

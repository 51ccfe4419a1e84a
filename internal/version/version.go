// Package version holds the version of this module, which its programs print.
//
// A release changes the version in Version and in CHANGELOG.md, and nowhere else. A test compares
// the two.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the newest release, in the form of semantic versioning.
const Version = "0.1.0"

// Line returns the line that a program prints for -V: its name, the version, the commit and the
// platform.
func Line(program string) string {
	return fmt.Sprintf("%s (tutti) %s, commit %s, %s %s/%s", program, Version, Commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Commit returns the commit from which this program was built, as the go command has recorded it. A
// + after the commit means that the checkout had changes. If nothing was recorded, as in tests and
// with go run, the result is "unknown".
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return commitOf(info)
}

func commitOf(info *debug.BuildInfo) string {
	revision, mark := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			mark = "+"
		}
	}
	return revision + mark
}

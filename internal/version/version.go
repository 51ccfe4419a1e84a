// Package version holds the version of this module, which its programs print.
//
// Version is the one place that a release changes beside CHANGELOG.md; a test compares
// the two.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the newest release, by semantic versioning.
const Version = "0.1.0"

// Line is what a program prints for -V: its name, the version, the commit and the
// platform.
func Line(program string) string {
	return fmt.Sprintf("%s (tutti) %s, commit %s, %s %s/%s", program, Version, Commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Commit is the commit that this program was built from, as the go command has recorded
// it. A + behind it means that the checkout had changes. It is "unknown" where nothing
// is recorded, as in tests and for go run.
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

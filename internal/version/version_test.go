package version

import (
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionIsTheNewestReleaseOfTheChangelog(t *testing.T) {
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d$`).FindSubmatch(text)
	if release == nil {
		t.Fatal("CHANGELOG.md has no heading of a release, as ## 1.2.3 - 2026-01-02")
	}
	if got := string(release[1]); got != Version {
		t.Errorf("CHANGELOG.md's newest release is %s, and Version is %s", got, Version)
	}
}

func TestCommitIsWhatTheBuildRecorded(t *testing.T) {
	setting := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	revision := setting("vcs.revision", "0123456789abcdef")
	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, "unknown"},
		{[]debug.BuildSetting{revision, setting("vcs.modified", "false")}, "0123456789ab"},
		{[]debug.BuildSetting{revision, setting("vcs.modified", "true")}, "0123456789ab+"},
	} {
		if got := commitOf(&debug.BuildInfo{Settings: c.settings}); got != c.want {
			t.Errorf("%v: got %q, want %q", c.settings, got, c.want)
		}
	}
}

func TestLineNamesProgramVersionAndCommit(t *testing.T) {
	if got, want := Line("prog"), "prog (tutti) "+Version+", commit "+Commit()+", go"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want it to begin with %q", got, want)
	}
}

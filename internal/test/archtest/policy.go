package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// A rule is one line of the policy.
type rule struct {
	packages []string // patterns of this module's packages, relative to it
	allowed  []permit // of this module, of third parties, guarded ones
	refused  []string // packages of the standard library
}

// A permit allows imports. With a file it allows them in the package's file of that name only.
type permit struct {
	pattern string
	file    string // "": every file
}

// guarded are the packages of the standard library that a rule must name.
var guarded = [...]string{"C", "log", "unsafe"}

// parsePolicy reads a policy; policy.txt says how one is written. It refuses
// one whose arrows do not all point down.
func parsePolicy(text string) ([]rule, error) {
	var rules []rule
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		left, right, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("policy: no colon in %q", strings.TrimSpace(line))
		}
		r := rule{packages: list(left)}
		for _, item := range list(right) {
			if name, ok := strings.CutPrefix(item, "!"); ok {
				r.refused = append(r.refused, name)
				continue
			}
			pattern, file, _ := strings.Cut(item, "@")
			if isOurs(pattern) && !ruled(rules, pattern) {
				return nil, fmt.Errorf("policy: %s may import %s, which no earlier line names", left, pattern)
			}
			r.allowed = append(r.allowed, permit{pattern, file})
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// list splits at commas.
func list(s string) []string {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// isOurs reports whether a pattern is for packages of this module. Third-party patterns begin with
// a host name; guarded packages are of the standard library.
func isOurs(pattern string) bool {
	first, _, _ := strings.Cut(pattern, "/")
	return !strings.Contains(first, ".") && !slices.Contains(guarded[:], pattern)
}

// ruled reports whether a rule exists for the packages that item names.
func ruled(rules []rule, item string) bool {
	base := strings.TrimSuffix(item, "/...")
	_, ok := find(rules, base)
	return ok
}

// find returns the first rule about the package.
func find(rules []rule, pkg string) (rule, bool) {
	for _, r := range rules {
		if matchAny(r.packages, pkg) {
			return r, true
		}
	}
	return rule{}, false
}

// allows reports whether a file may import a package. If not, files are the files that may.
func (r rule) allows(imported, file string) (ok bool, files []string) {
	for _, p := range r.allowed {
		if !matchAny([]string{p.pattern}, imported) {
			continue
		}
		if p.file == "" || p.file == file {
			return true, nil
		}
		files = append(files, p.file)
	}
	return false, files
}

// matchAny reports whether a pattern covers path.
func matchAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		base, below := strings.CutSuffix(pattern, "/...")
		return path == base || below && strings.HasPrefix(path, base+"/")
	})
}

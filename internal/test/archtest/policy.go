package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// A rule is one line of the policy.
type rule struct {
	packages []string // patterns of packages of this module, relative to the module
	allowed  []permit // packages of this module, of third parties, and guarded packages
	refused  []string // packages of the standard library
}

// A permit allows an import. If it names a file, it allows the import only in the package's file of
// that name.
type permit struct {
	pattern string
	file    string // "" for every file
}

// guarded lists the packages of the standard library that may be imported only if a rule names
// them.
var guarded = [...]string{"C", "log", "unsafe"}

// parsePolicy parses a policy, in the format that policy.txt describes. It refuses a policy in
// which a package may import a package of a higher layer.
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

// isOurs reports whether a pattern is for packages of this module. Patterns for third-party
// packages begin with a host name. Guarded packages are in the standard library.
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

// allows reports whether a file may import a package. If not, files lists the files that may.
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

package launch

import (
	"os"
	"strings"
	"testing"
)

func TestManualPageIsCurrent(t *testing.T) {
	const page = "../docs/tuttirun.1"
	text, err := os.ReadFile(page)
	if err != nil || string(text) != manual() {
		t.Errorf("%s is not what --man prints (%v): run make docs", page, err)
	}
}

func TestManualPageIsWellFormed(t *testing.T) {
	page := manual()
	for line := range strings.Lines(page) {
		request, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !strings.Contains(" .\\\" .TH .SH .TP .B .BR .PP ", " "+request+" ") {
			t.Errorf("got the line %q, which is no request of this page", line)
		}
		if rest, ok := strings.CutPrefix(line, ".B "); ok && strings.Contains(strings.ReplaceAll(rest, `\-`, ""), "-") {
			t.Errorf("got the line %q with a hyphen, want a minus sign, which can be copied", line)
		}
	}
	for _, o := range options() {
		for _, n := range o.names {
			if o.rejected == "" && (o.help != "" || o.set == nil) && !strings.Contains(page, roff(dashed(n))) {
				t.Errorf("the page does not have %s", dashed(n))
			}
		}
	}
	if got, want := roff(".a'b\\-c\n.d"), `\&.a\(aqb\e\-c`+"\n"+`\&.d`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCompletionKnowsAllOptions(t *testing.T) {
	for shell, spelled := range map[string]func(name string) string{
		"bash": func(n string) string { return " " + dashed(n) + " " },
		"zsh":  func(n string) string { return "'*--" + n + "[" },
		"fish": func(n string) string { return " -l " + n + " -d '" },
	} {
		script, err := completion(shell)
		if err != nil {
			t.Fatal(err)
		}
		script = strings.ReplaceAll(script, "'", " ' ")
		for _, o := range options() {
			for _, n := range o.names {
				want := strings.ReplaceAll(spelled(n), "'", " ' ")
				if o.help != "" && !strings.Contains(script, want) {
					t.Errorf("%s: the script does not have %q", shell, want)
				}
			}
		}
	}
	if _, err := completion("csh"); err == nil {
		t.Error("csh: got no error")
	}
}

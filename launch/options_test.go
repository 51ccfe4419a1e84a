package launch

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseAcceptsUsualCommandLines(t *testing.T) {
	two := func(set ...string) []App { return []App{{Ranks: 2, Set: set, Args: []string{"prog", "-np", "9"}}} }
	host, _ := os.Hostname()
	for name, c := range map[string]struct {
		line string
		want Job
	}{
		"np":                     {"-np 2 prog -np 9", Job{Apps: two()}},
		"two dashes":             {"--np 2 prog -np 9", Job{Apps: two()}},
		"n":                      {"-n 2 prog -np 9", Job{Apps: two()}},
		"c":                      {"--c 2 prog -np 9", Job{Apps: two()}},
		"joined":                 {"-np=2 prog -np 9", Job{Apps: two()}},
		"two dashes end options": {"-np 2 -- prog -np 9", Job{Apps: two()}},
		"x":                      {"-np 2 -x A=1 -x HOME -x B= prog -np 9", Job{Apps: two("A=1", "HOME=/h", "B=")}},
		"x with ranks' names":    {"-np 2 -x RANK prog -np 9", Job{Apps: two("RANK=7")}},
		"hydra's variables":      {"-genv A 1 -np 2 -env B 2 prog -np 9", Job{Apps: two("A=1", "B=2")}},
		"accepted":               {"--oversubscribe --allow-run-as-root --bind-to none -np 2 prog -np 9", Job{Apps: two()}},
		"wdir":                   {"-wdir /tmp -n 1 p", Job{Apps: []App{{Ranks: 1, Dir: "/tmp", Args: []string{"p"}}}}},
		"one per processor":      {"p", Job{Apps: []App{{Ranks: runtime.NumCPU(), Args: []string{"p"}}}}},
		"slots":                  {"-H localhost:2," + host + ":3 p", Job{Apps: []App{{Ranks: 5, Args: []string{"p"}}}}},
		"per node":               {"-N 3 p", Job{Apps: []App{{Ranks: 3, Args: []string{"p"}}}}},
		"np before slots":        {"-host localhost:4 -np 3 p", Job{Apps: []App{{Ranks: 3, Args: []string{"p"}}}}},
		"transport":              {"-n 1 --transport tcp --report-transport p", Job{Apps: []App{{Ranks: 1, Args: []string{"p"}}}, Transport: "tcp", Report: true}},
		"report of the source":   {"-n 1 --report-bootstrap p", Job{Apps: []App{{Ranks: 1, Args: []string{"p"}}}, ReportBootstrap: true}},
		"tags":                   {"-l -n 1 p", Job{Apps: []App{{Ranks: 1, Args: []string{"p"}}}, Output: Output{Prefix: "[%r] "}}},
		"mpi tags":               {"-tag-output -n 1 p", Job{Apps: []App{{Ranks: 1, Args: []string{"p"}}}, Output: Output{Prefix: "[%j,%r]<%s>:"}}},
		"times":                  {"--timeout 90 --grace 1m30s -n 1 p", Job{Apps: []App{{Ranks: 1, Args: []string{"p"}}}, Timeout: 90 * time.Second, Grace: 90 * time.Second}},
		"quiet and loud":         {"-q -v -n 1 p", Job{Apps: []App{{Ranks: 1, Args: []string{"p"}}}, Quiet: true, Verbose: true}},
		"timeline":               {"-n 1 --timeline out.json p", Job{Apps: []App{{Ranks: 1, Args: []string{"p"}}}, Timeline: "out.json"}},
		"several programs": {"-np 1 -x A=1 -genv G 1 p a : -l -n 2 --wdir d q :: b", Job{Output: Output{Prefix: "[%r] "}, Apps: []App{
			{Ranks: 1, Set: []string{"G=1", "A=1"}, Args: []string{"p", "a"}}, {Ranks: 2, Dir: "d", Set: []string{"G=1"}, Args: []string{"q", "::", "b"}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want.Grace == 0 {
				c.want.Grace = 2 * time.Second
			}
			req, err := parse(strings.Fields(c.line), []string{"HOME=/h", "RANK=7"})
			if err != nil {
				t.Fatal(err)
			}
			got, want := req.job, c.want
			sameApp := func(a, b App) bool {
				return a.Ranks == b.Ranks && a.Dir == b.Dir && slices.Equal(a.Set, b.Set) && slices.Equal(a.Args, b.Args)
			}
			if !slices.EqualFunc(got.Apps, want.Apps, sameApp) {
				t.Errorf("got programs %+v, want %+v", got.Apps, want.Apps)
			}
			if got.Output != want.Output || got.Timeout != want.Timeout || got.Grace != want.Grace || got.Quiet != want.Quiet ||
				got.Verbose != want.Verbose || got.Transport != want.Transport || got.Timeline != want.Timeline || got.Report != want.Report || got.ReportBootstrap != want.ReportBootstrap {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if len(req.warnings) != 0 {
				t.Errorf("got warnings %q", req.warnings)
			}
		})
	}
}

func TestParseReadsTheOptionsOfOutput(t *testing.T) {
	for line, want := range map[string]Output{
		"-l":                                {Prefix: "[%r] "},
		"--tag-output":                      {Prefix: "[%j,%r]<%s>:"},
		"--timestamp-output":                {Prefix: "%t<%s>:"},
		"--timestamp-output --tag-output":   {Prefix: "%t[%j,%r]<%s>:"},
		"--prefix-output-with-timestamp -l": {Prefix: "%t[%r] "},
		"-prepend-pattern %r/%h: -prefix-timestamp":    {Prefix: "%t %r/%h:"},
		"--merge-stderr-to-stdout":                     {Merge: true},
		"--output tag":                                 {Prefix: "[%j,%r]<%s>: "},
		"--output rank,TIMESTAMP,merge":                {Prefix: "%t[%r]<%s>: ", Merge: true},
		"--output merge-stderr-to-stdout,dir=a:nocopy": {Merge: true, FilesOnly: true, Stdout: "a/%j/rank.%R/stdout", Stderr: "a/%j/rank.%R/stderr"},
		"--output file=a/b%":                           {Stdout: "a/b%%.%R", Stderr: "a/b%%.%R"},
		"--output-filename of":                         {Stdout: "of/%j/rank.%R/stdout", Stderr: "of/%j/rank.%R/stderr"},
		"--output-filename=/o%f/":                      {Stdout: "/o%%f/%j/rank.%R/stdout", Stderr: "/o%%f/%j/rank.%R/stderr"},
		"--output-filename of:nocopy,nojobid":          {FilesOnly: true, Stdout: "of/rank.%R/stdout", Stderr: "of/rank.%R/stderr"},
		"-outfile-pattern o.%r":                        {FilesOnly: true, Stdout: "o.%r"},
		"-errfile-pattern %h/e":                        {FilesOnly: true, Stderr: "%h/e"},
	} {
		req, err := parse(strings.Fields(line+" -np 1 p"), nil)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		} else if req.job.Output != want || len(req.warnings) != 0 {
			t.Errorf("%q: got %+v and warnings %q, want %+v", line, req.job.Output, req.warnings, want)
		}
	}
}

func TestParseErrorsNameTheRemedy(t *testing.T) {
	for line, want := range map[string]string{
		"":                             "no program given; see --help",
		"-np 2":                        "no program given",
		"-np":                          "-np needs N",
		"-np two p":                    `-np: got "two", want a number from 1 to 4096`,
		"-np 0 p":                      `got "0", want a number`,
		"-np -1 p":                     `got "-1", want a number`,
		"-np 9999999 p":                "want a number from 1 to",
		"-np 4096 p : -np 1 q":         "got 4097 ranks, want at most 4096",
		"--tiemout 3 p":                "did you mean --timeout?",
		"--tag-outptu p":               "did you mean --tag-output?",
		"--frobnicate p":               "unknown option --frobnicate; see --help",
		"-oversubscribe=1 p":           "got a value after '=', want none",
		"-x =1 p":                      "want NAME or NAME=VALUE",
		"--timeout soon p":             "want seconds, or a duration",
		"--timeout -3 p":               "want seconds, or a duration",
		"--mca btl":                    "--mca needs KEY VALUE",
		"-np 1 p :":                    "no program after the last ':'",
		"-np 1 p : : -np 1 q":          "no program given",
		": -np 1 q":                    "no program given",
		"p : -np 1 q":                  "p: got no -np, want one",
		"--hostfile f p":               "open f: no such file",
		"-prepend-pattern %q: p":       `got "%q", want %r (rank)`,
		"-outfile-pattern o.% p":       `got "%", want`,
		"-outfile-pattern= p":          "want a name such as",
		"--output-filename d:copy p":   "want nocopy or nojobid",
		"--output-filename :nocopy p":  "want the name of a directory",
		"--output xml p":               `got "xml", want tag, rank`,
		"--output dir p":               `got "dir", want`,
		"--output tag:raw p":           `got "raw" after ':'`,
		"--nooversubscribe -np 4000 p": "--nooversubscribe",
		"-stdin all p":                 "-stdin: got all, want one rank or none",
		"-stdin some p":                `got "some", want a number from 0`,
		"-np 2 -stdin 2 p":             "-stdin: got rank 2, want one of the 2 ranks",
	} {
		_, err := parse(strings.Fields(line), nil)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

func TestParseWarnsOnceAboutWhatItIgnores(t *testing.T) {
	req, err := parse(strings.Fields("--mca btl tcp --mca pml ob1 -usize 3 -x NOT_SET -np 1 p --mca"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(req.warnings) != 2 || !strings.Contains(req.warnings[0], "variable NOT_SET") || !strings.HasSuffix(req.warnings[1], ": --mca btl, --mca pml, -usize") {
		t.Errorf("got %q", req.warnings)
	}
	if set := req.job.Apps[0].Set; len(set) != 0 {
		t.Errorf("got variables %q", set)
	}
}

func TestVariablesThatTheLauncherDecidesAreIgnoredWithAWarning(t *testing.T) {
	for _, name := range reservedVars() {
		for _, line := range []string{"-x " + name + "=7", "-x " + name, "-env " + name + " 7", "-genv " + name + " 7"} {
			req, err := parse(strings.Fields(line+" -np 1 p"), []string{name + "=7"})
			if err != nil {
				t.Fatal(err)
			}
			if len(req.warnings) != 1 || !strings.Contains(req.warnings[0], name) || len(req.job.Apps[0].Set) != 0 {
				t.Errorf("%s: got warnings %q and variables %q", line, req.warnings, req.job.Apps[0].Set)
			}
		}
	}
	env := rankEnv(nil, &Job{}, &App{}, jobInfo{}, 1)
	env = append(env, rankEnv(nil, &Job{}, &App{}, jobInfo{store: true}, 1)...)
	env = append(env, exitsSettings()...)
	for _, name := range reservedVars() {
		if _, ok := lookup(env, name); !ok {
			t.Errorf("%s is not given to a rank", name)
		}
	}
}

func TestOptionsHaveOneMeaningEach(t *testing.T) {
	seen := make(map[string]bool)
	help := usage()
	for _, o := range options() {
		for _, n := range o.names {
			if seen[n] {
				t.Errorf("-%s stands twice in the table", n)
			}
			seen[n] = true
			if o.help != "" && !strings.Contains(help, dashed(n)) {
				t.Errorf("--help does not show %s", n)
			}
		}
		if (o.args > 0) != (o.operand != "") {
			t.Errorf("%v takes %d arguments, called %q", o.names, o.args, o.operand)
		}
	}
	for line := range strings.Lines(help) {
		if len(line) > 101 {
			t.Errorf("--help has a line of %d bytes: %s", len(line), line)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("-np\x002\x00p\x00:\x00-x\x00A=1\x00q")
	f.Add("--\x00-p")
	f.Add("-H\x00localhost:2,,:\x00p")
	f.Fuzz(func(t *testing.T, line string) {
		req, err := parse(strings.Split(line, "\x00"), nil)
		if err != nil || req.needsNoProgram() {
			return
		}
		for _, a := range req.job.Apps {
			if a.Ranks < 1 || len(a.Args) == 0 {
				t.Errorf("accepted %+v", a)
			}
		}
	})
}

package launch

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A usageError says why a command line cannot be parsed.
type usageError string

// Error implements error.
func (e usageError) Error() string { return string(e) }

// usagef makes a usageError.
func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// A request is the content of a command line.
type request struct {
	job      Job
	print    func() string // the text to print in place of a job, as for --help; nil if none
	merge    string        // a timeline whose parts are to be merged; "" if none
	noInput  bool          // no rank has the standard input
	warnings []string
	inherit  []string // the variables that ranks inherit, if limited is set
	limited  bool     // ranks inherit only some variables
}

// environ returns the part of env that ranks inherit.
func (r *request) environ(env []string) []string {
	if !r.limited {
		return env
	}
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return name != "PATH" && !slices.Contains(r.inherit, name)
	})
}

// needsNoProgram reports whether the request runs no program, for example --help.
func (r *request) needsNoProgram() bool { return r.print != nil || r.merge != "" }

// A parser reads a command line once:
//
//	command line = app { ":" app }
//	app          = { option } [ "--" ] program { argument }
//
// An option has one dash or two. Its value is the next argument, or follows "=". -np, -x, -wdir,
// --path, --role and -host apply to their app. All other options apply to the job, regardless of their
// position.
type parser struct {
	req     request
	env     []string // values for -x NAME
	app     App
	place   placer
	appFile string   // the file of --app; "" if there is none
	inFile  bool     // the programs are being read from a file
	shared  []string // variables for all programs
	path    string   // --path of app
	paths   []string // the --path of each App
	ignored []string
	elastic Elastic // the values of the options; see finishElastic
	agents  agents

	sharedPath, sharedDir string // a prefix of PATH for all programs, and the directory of programs that have none of their own

	timestamp bool // the prefix of output begins with the time
}

// parse parses the arguments after the program's own name. Errors are usageErrors.
func parse(args, env []string) (*request, error) {
	p := &parser{env: env, req: request{job: Job{Grace: 2 * time.Second}}}
	p.elastic = Elastic{Restarts: -1, WaitLimit: 10 * time.Minute, Cooldown: [2]time.Duration{time.Second, time.Minute}}
	if err := p.readVariables(); err != nil {
		return nil, err
	}
	// The first App is parsed even if there are no arguments, so that parseApp reports a missing
	// program.
	for first := true; first || len(args) > 0; first = false {
		app, rest, more := cutAtColon(args)
		if err := p.parseApp(app); err != nil {
			return nil, err
		}
		if p.req.needsNoProgram() {
			return &p.req, nil
		}
		if args = rest; more && len(rest) == 0 {
			return nil, usagef("no program after the last ':'")
		}
	}
	return &p.req, p.finish()
}

// cutAtColon splits args at the first argument that is ":". As with mpirun, a program cannot have
// such an argument.
func cutAtColon(args []string) (app, rest []string, found bool) {
	if i := slices.Index(args, ":"); i >= 0 {
		return args[:i], args[i+1:], true
	}
	return args, nil, false
}

// parseApp reads the options and the program of one App.
func (p *parser) parseApp(args []string) error {
	p.app, p.path = App{}, ""
	// The first argument without a dash is the program. The arguments after it belong to the
	// program.
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		if args[0] == "--" {
			args = args[1:]
			break
		}
		used, err := p.parseOption(args)
		if err != nil || p.req.needsNoProgram() {
			return err
		}
		args = args[used:]
	}
	switch {
	case p.appFile != "" && len(args) > 0:
		return usagef("--app: got program %s, too, want all programs in the file %s", args[0], p.appFile)
	case p.appFile != "":
		return p.parseAppFile()
	case len(args) == 0:
		return usagef("no program given; see --help")
	}
	p.app.Args = args
	p.req.job.Apps = append(p.req.job.Apps, p.app)
	p.paths = append(p.paths, p.path)
	return nil
}

// parseAppFile reads an App from each line of the file of --app. Lines that begin with '#' are
// comments.
func (p *parser) parseAppFile() error {
	name := p.appFile
	if p.appFile = ""; p.inFile {
		return usagef("--app: got it in the file of another --app, want it on the command line only")
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return usagef("--app: %v", err)
	}
	p.inFile = true
	defer func() { p.inFile = false }()
	before, n := len(p.req.job.Apps), 0
	for line := range strings.Lines(string(text)) {
		if n++; strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		words, err := splitWords(line)
		if err == nil && len(words) > 0 {
			err = p.parseApp(words)
		}
		if err != nil {
			return usagef("%s:%d: %v", name, n, err)
		}
	}
	if len(p.req.job.Apps) == before && !p.req.needsNoProgram() {
		return usagef("--app: got no program in %s, want one on each line", name)
	}
	return nil
}

// parseOption reads the option at args[0]. It returns how many arguments the option takes.
func (p *parser) parseOption(args []string) (used int, err error) {
	// mpirun and mpiexec use one dash or two, so both are accepted.
	text := strings.TrimPrefix(strings.TrimPrefix(args[0], "-"), "-")
	name, value, joined := strings.Cut(text, "=")
	o := findOption(name)
	if o == nil {
		o = findOption(strings.ReplaceAll(name, "_", "-")) // torchrun accepts both, too
	}
	switch {
	case o == nil:
		return 0, unknownOption(args[0], name)
	case o.rejected != "":
		return 0, usagef("%s: %s", args[0], o.rejected)
	case joined && o.args != 1:
		return 0, usagef("%s: got a value after '=', want none", "-"+name)
	case joined:
		return 1, p.apply(o, args[0], []string{value})
	case len(args) <= o.args:
		return 0, usagef("%s needs %s", args[0], o.operand)
	}
	return 1 + o.args, p.apply(o, args[0], args[1:1+o.args])
}

// apply applies an option. It ignores an option that has no meaning here, and adds a warning unless
// the option's field accepted is set.
func (p *parser) apply(o *option, spelled string, args []string) error {
	if o.set == nil {
		if !o.accepted {
			p.ignore(spelled)
		}
		return nil
	}
	if err := o.set(p, args); err != nil {
		return usagef("%s: %v", spelled, err)
	}
	return nil
}

// finish fills in defaults after all apps are parsed, and validates the job.
func (p *parser) finish() error {
	j := &p.req.job
	if len(p.ignored) > 0 {
		p.warn("ignored, because it has no meaning here: %s", strings.Join(p.ignored, ", "))
	}
	for i := range j.Apps {
		a := &j.Apps[i]
		if a.Ranks == 0 && len(j.Apps) > 1 {
			return usagef("%s: got no -np, want one for each of several programs", a.Args[0])
		}
		// Variables of one program come after the variables of all programs, and so override them.
		a.Set = append(slices.Clone(p.shared), a.Set...)
		a.Dir = cmp.Or(a.Dir, p.sharedDir)
		if first := joinPath(p.paths[i], p.sharedPath); first != "" {
			path, _ := lookup(append(slices.Clone(p.env), a.Set...), "PATH")
			a.Set = append(a.Set, "PATH="+joinPath(first, path))
		}
	}
	if err := p.finishHosts(); err != nil {
		return err
	}
	total, err := p.finishRanks()
	if err != nil {
		return err
	}
	if total > 0 && j.StdinRank >= total {
		return usagef("-stdin: got rank %d, want one of the %d ranks of the job", j.StdinRank, total)
	}
	p.finishOutput()
	if err := p.finishAgents(); err != nil {
		return err
	}
	if err := p.finishElastic(total); err != nil {
		return err
	}
	return nil
}

// joinPath joins two lists of directories, either of which may be empty.
func joinPath(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ":" + b
}

// finishElastic decides whether processes may become ranks of the running job, and fills in
// defaults. The parameter total is the number of ranks by -np, or 0 if it is not known before other
// hosts have answered.
func (p *parser) finishElastic(total int) error {
	e, j := &p.elastic, &p.req.job
	own := e.Restarts >= 0 || e.Min > 0 || e.Discovery != ""
	switch {
	case e.Max > 0 && e.Discovery == "":
		return usagef("--max-np: got no --host-discovery-script, want one: nothing else adds ranks")
	case !own && !j.Recovery:
		return nil
	case j.Timeline != "" && own:
		return usagef("--timeline: got a job that starts ranks while it runs, want a fixed set of ranks; leave out --timeline or the options that start ranks")
	case e.Discovery != "" && len(j.Apps) > 1:
		return usagef("--host-discovery-script: got %d programs, want one", len(j.Apps))
	}
	switch {
	case e.Min == 0 && own:
		e.Min = total
	case e.Min == 0:
		e.Min, e.First = 1, cmp.Or(total, MaxRanks) // the user has not asked for another number of ranks
	}
	switch {
	case e.Max == 0 && e.Discovery != "":
		e.Max = MaxRanks
	case e.Max == 0:
		e.Max = total
	}
	if e.Max > 0 && e.Min > e.Max {
		return usagef("--min-np: got %d, want at most %d (%s)", e.Min, e.Max, maxOption(e))
	}
	e.Restarts = max(e.Restarts, 0)
	j.Recovery, j.Elastic = true, e
	return nil
}

// maxOption returns the option that bounds the number of ranks.
func maxOption(e *Elastic) string {
	if e.Discovery != "" {
		return "--max-np"
	}
	return "-np"
}

// warn adds a warning for the user.
func (p *parser) warn(format string, args ...any) {
	p.req.warnings = append(p.req.warnings, fmt.Sprintf(format, args...))
}

// count parses a number of ranks.
func count(s string) (int, error) { return numberFrom(1, s) }

// number parses a number that may be 0.
func number(s string) (int, error) { return numberFrom(0, s) }

// numberFrom parses a number from lo to MaxRanks.
func numberFrom(lo int, s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > MaxRanks {
		return 0, fmt.Errorf("got %q, want a number from %d to %d", s, lo, MaxRanks)
	}
	return n, nil
}

// duration parses seconds, or a Go duration.
func duration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		d, err = time.ParseDuration(s + "s")
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("got %q, want seconds, or a duration like 90s or 10m", s)
	}
	return d, nil
}

// variable parses NAME=VALUE or NAME. For NAME it takes the value from the launcher's environment,
// even if ranks would not inherit the variable. If variable ignores s, it adds a warning, and ok is
// false.
func (p *parser) variable(s string) (setting string, ok bool, err error) {
	name, _, has := strings.Cut(s, "=")
	if name == "" || strings.ContainsRune(s, 0) {
		return "", false, fmt.Errorf("got %q, want NAME or NAME=VALUE", s)
	}
	if slices.Contains(reservedVars(), name) {
		p.warn("variable %s: ignored; tuttirun itself sets it for each rank", name)
		return "", false, nil
	}
	if has {
		return s, true, nil
	}
	v, ok := lookup(p.env, name)
	if !ok {
		p.warn("variable %s: ignored; it is not set in tuttirun's environment", name)
		return "", false, nil
	}
	return name + "=" + v, true, nil
}

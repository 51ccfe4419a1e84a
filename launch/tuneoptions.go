package launch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/internal/vars"
	"github.com/tutti-go/tutti/launch/internal/placement"
)

// setting returns the set function of an option that sets a variable for all ranks. The function
// convert checks the value, and converts it to the variable's unit.
func setting(variable string, convert func(string) (string, error)) func(*parser, []string) error {
	return func(p *parser, a []string) error {
		value, err := convert(a[0])
		p.shared = append(p.shared, variable+"="+value)
		return err
	}
}

// constant returns the set function of an option without a value that sets a variable for all ranks.
func constant(variable, value string) func(*parser, []string) error {
	return func(p *parser, _ []string) error {
		p.shared = append(p.shared, variable+"="+value)
		return nil
	}
}

// isText accepts any value except the empty one.
func isText(s string) (string, error) {
	if s == "" {
		return "", errors.New("got an empty value, want a non-empty one")
	}
	return s, nil
}

// isNumber accepts a number that is not negative.
func isNumber(s string) (string, error) {
	if f, err := strconv.ParseFloat(s, 64); err != nil || !(f >= 0 && f <= 1<<53) {
		return "", fmt.Errorf("got %q, want a number", s)
	}
	return s, nil
}

// inBytes converts mebibytes.
func inBytes(s string) (string, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f < 1<<40) {
		return "", fmt.Errorf("got %q, want a number of MiB", s)
	}
	return strconv.FormatInt(int64(f*(1<<20)), 10), nil
}

// inSeconds converts seconds, or a Go duration, to the text of a Go duration.
func inSeconds(s string) (string, error) {
	d, err := duration(s)
	return d.String(), err
}

// tuneOptions returns horovodrun's and torchrun's options that set variables of the ranks. They
// take precedence over the launcher's environment, and -x takes precedence over them.
func tuneOptions() []option {
	return []option{
		{names: []string{"fusion-threshold-mb"}, args: 1, operand: "MIB", help: "fuse tensors up to this size (sets TUTTI_FUSION_THRESHOLD)", set: setting("TUTTI_FUSION_THRESHOLD", inBytes)},
		{names: []string{"cycle-time-ms"}, args: 1, operand: "MS", help: "how long submissions wait for others (sets TUTTI_CYCLE_TIME)", set: setting("TUTTI_CYCLE_TIME", isNumber)},
		{names: []string{"cache-capacity"}, args: 1, operand: "N", help: "entries of the response cache (sets TUTTI_CACHE_CAPACITY)", set: setting("TUTTI_CACHE_CAPACITY", isNumber)},
		{names: []string{"autotune"}, help: "try settings of the coordinator (sets TUTTI_AUTOTUNE)", set: constant("TUTTI_AUTOTUNE", "1")},
		{names: []string{"no-autotune"}, set: constant("TUTTI_AUTOTUNE", "0")},
		{names: []string{"autotune-log-file"}, args: 1, operand: "FILE", set: setting("TUTTI_AUTOTUNE_LOG", isText)},
		{names: []string{"autotune-steps-per-sample"}, args: 1, operand: "N", set: setting("TUTTI_AUTOTUNE_STEPS_PER_SAMPLE", isNumber)},
		{names: []string{"autotune-bayes-opt-max-samples"}, args: 1, operand: "N", set: setting("TUTTI_AUTOTUNE_MAX_SAMPLES", isNumber)},
		{names: []string{"no-stall-check"}, help: "do not report ranks that are missing (sets TUTTI_STALL_CHECK_DISABLE)", set: constant("TUTTI_STALL_CHECK_DISABLE", "1")},
		{names: []string{"stall-check"}, set: constant("TUTTI_STALL_CHECK_DISABLE", "0")},
		{names: []string{"stall-check-warning-time-seconds"}, args: 1, operand: "S", help: "report missing ranks after this time", set: setting("TUTTI_STALL_CHECK_TIME_SECONDS", isNumber)},
		{names: []string{"stall-check-shutdown-time-seconds"}, args: 1, operand: "S", help: "fail after this time", set: setting("TUTTI_STALL_SHUTDOWN_TIME_SECONDS", isNumber)},
		{names: []string{"gloo-timeout-seconds"}, args: 1, operand: "S", help: "the limit of a call (sets TUTTI_TIMEOUT)", set: setting(vars.Timeout, inSeconds)},
		{names: []string{"tcp"}, help: "the same as --transport tcp",
			set: func(p *parser, _ []string) error { p.req.job.Transport = "tcp"; return nil }},
		{names: []string{"master-addr"}, args: 1, operand: "HOST", help: "set MASTER_ADDR, for programs of PyTorch", set: setting(vars.TorchAddr, isText)},
		{names: []string{"master-port"}, args: 1, operand: "PORT", help: "set MASTER_PORT, for programs of PyTorch", set: setting(vars.TorchPort, isNumber)},
		{names: []string{"role"}, args: 1, operand: "NAME", help: "the role of this program's ranks (the name of its file if there are several programs)",
			set: func(p *parser, a []string) (err error) { p.app.Role, err = isText(a[0]); return err }},
		{names: []string{"node-rank"}, args: 1, operand: "0",
			set: func(_ *parser, a []string) error {
				if a[0] != "0" {
					return fmt.Errorf("got %q, want 0: one tuttirun starts the ranks of all hosts", a[0])
				}
				return nil
			}},
		{names: []string{"interface", "iface"}, args: 1, operand: "LIST", help: "the network interfaces between hosts (sets TUTTI_INTERFACE)",
			set: func(p *parser, a []string) error { p.req.job.Interface = a[0]; return nil }},
		{names: []string{"network-interfaces", "network-interface", "nics"}, args: 1, operand: "LIST", help: "the same; names are exact",
			set: func(p *parser, a []string) error { p.req.job.Interface = "=" + a[0]; return nil }},
		{names: []string{"mpi-args", "binding-args"}, args: 1, operand: "OPTIONS", help: "options of mpirun, in quotes",
			set: func(p *parser, a []string) error { return p.moreOptions(a[0]) }},
		{names: []string{"launcher", "bootstrap"}, args: 1, operand: "NAME",
			set: func(_ *parser, a []string) error {
				if a[0] != "ssh" && a[0] != "fork" {
					return fmt.Errorf("got %q, want ssh or fork; under Slurm, srun --mpi=pmi2 starts the ranks without tuttirun", a[0])
				}
				return nil
			}},
		{names: []string{"mca", "gmca", "omca", "pmca", "prtemca"}, args: 2, operand: "KEY VALUE",
			set: func(p *parser, a []string) error {
				known, err := p.mca(a[0], a[1])
				if err == nil && !known {
					p.ignore("--mca " + a[0])
				}
				return err
			}},
	}
}

// mca applies a parameter of Open MPI. It reports whether the parameter means something here.
func (p *parser) mca(key, value string) (known bool, err error) {
	j := &p.req.job
	on := value != "" && value != "0" && !strings.EqualFold(value, "false") && !strings.EqualFold(value, "no")
	if rest, ok := strings.CutPrefix(key, "prte_"); ok {
		key = "orte_" + rest
	}
	switch key {
	case "plm_rsh_agent", "pls_rsh_agent", "plm_ssh_agent":
		// Open MPI tries several agents in turn. Here the first one is used.
		first, _, _ := strings.Cut(value, ":")
		j.Agent, err = splitWords(first)
	case "plm_rsh_args", "plm_ssh_args":
		j.AgentArgs, err = splitWords(value)
	case "orte_default_hostfile":
		p.place.byDefault = value
	case "orte_set_default_slots":
		// "none" and "core" are Open MPI's other values.
		if n, bad := count(value); bad == nil {
			p.place.slots = n
		}
	// "=" makes Interface match names exactly. The list may also contain networks.
	case "btl_tcp_if_include", "oob_tcp_if_include", "prte_if_include":
		j.Interface = "=" + value
	case "btl_tcp_if_exclude", "oob_tcp_if_exclude", "prte_if_exclude":
		j.Interface = "^=" + value
	case "rmaps_base_oversubscribe":
		if o := placement.Allow; on {
			p.place.over = &o
		}
	case "rmaps_base_no_oversubscribe":
		if o := placement.Refuse; on {
			p.place.over = &o
		}
	case "rmaps_base_mapping_policy", "rmaps_default_mapping_policy":
		err = j.Placement.ParseMapBy(value)
	case "rmaps_base_ranking_policy", "rmaps_default_ranking_policy":
		p.place.rankBy = value
	case "hwloc_base_binding_policy", "hwloc_default_binding_policy":
		err = j.Placement.ParseBindTo(value)
	case "hwloc_base_cpu_set", "hwloc_base_cpu_list", "hwloc_default_cpu_list":
		j.Placement.CPUs, err = placement.ParseCPUs(value)
	case "hwloc_base_report_bindings", "orte_report_bindings":
		j.ReportBindings = on
	case "hwloc_base_use_hwthreads_as_cpus":
		j.Placement.Threads = on
	case "rmaps_ppr_n_pernode":
		j.Placement.PerNode, err = count(value)
	case "orte_allow_run_as_root", "orte_keep_fqdn_hostnames":
	default:
		return false, nil
	}
	return true, err
}

// readVariables applies the environment variables that stand for options. Options on the command
// line take precedence.
func (p *parser) readVariables() error {
	for _, e := range p.env {
		name, value, _ := strings.Cut(e, "=")
		key, ok := strings.CutPrefix(name, "OMPI_MCA_")
		if !ok {
			key, ok = strings.CutPrefix(name, "PRTE_MCA_")
		}
		var err error
		switch {
		case ok:
			_, err = p.mca(key, value)
		case value == "":
		case name == "HYDRA_HOST_FILE" || name == "I_MPI_HYDRA_HOST_FILE":
			p.place.byDefault, p.place.dialect = value, placement.Hydra
		case name == "HYDRA_LAUNCH_EXTRA_ARGS" || name == "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS":
			p.req.job.AgentArgs, err = splitWords(value)
		case name == "I_MPI_PERHOST":
			p.place.hydra = true
			if n, bad := count(value); bad == nil { // "all" and "allcores" are the default here
				p.req.job.Placement.PerNode = n
			}
		case name == "MPIEXEC_TIMEOUT":
			p.req.job.Timeout, err = duration(value)
		}
		if err != nil {
			return usagef("variable %s: %v", name, err)
		}
	}
	return nil
}

// ignore records an option that has no meaning here, for the warning.
func (p *parser) ignore(spelled string) {
	if !slices.Contains(p.ignored, spelled) {
		p.ignored = append(p.ignored, spelled)
	}
}

// moreOptions parses a text of several options, which is the value of --mpi-args.
func (p *parser) moreOptions(text string) error {
	args, err := splitWords(text)
	for err == nil && len(args) > 0 {
		var used int
		if args[0] == "" || args[0][0] != '-' {
			return fmt.Errorf("got %q, want an option", args[0])
		}
		used, err = p.parseOption(args)
		args = args[used:]
	}
	return err
}

// splitWords splits text at white space. Single and double quotes keep white space, and a backslash
// keeps the next character, as in a shell.
func splitWords(text string) (words []string, err error) {
	var word strings.Builder
	inWord, quote, escaped := false, rune(0), false
	for _, c := range text {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			inWord, escaped = true, true
		case c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			inWord, quote = true, c
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			inWord = true
			word.WriteRune(c)
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("got %.60q, want a closing quote", text)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

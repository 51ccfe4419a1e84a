package launch

import (
	"fmt"
	"strings"
)

// completion returns a script that completes command lines of tuttirun in a shell.
func completion(shell string) (string, error) {
	switch shell {
	case "bash":
		return bashCompletion(), nil
	case "zsh":
		return zshCompletion(), nil
	case "fish":
		return fishCompletion(), nil
	}
	return "", fmt.Errorf("got %q, want bash, zsh or fish", shell)
}

// values returns the values of an option whose operand lists them, as in "none|N". It leaves out a
// value in capitals, which is a placeholder.
func (o *option) values() (all []string) {
	if !strings.Contains(o.operand, "|") {
		return nil
	}
	for v := range strings.SplitSeq(o.operand, "|") {
		if v == strings.ToLower(v) {
			all = append(all, v)
		}
	}
	return all
}

// bothDashes returns a name with one dash and with two.
func bothDashes(name string) []string { return []string{"-" + name, "--" + name} }

// bashCompletion returns a script for bash. The script skips the options and their values to find
// out whether the cursor is at an option, at a value or at the program.
func bashCompletion() string {
	var offered []string
	var cases strings.Builder
	withArguments := make(map[int][]string) // options by the number of their arguments
	for _, o := range options() {
		if o.rejected != "" {
			continue
		}
		for _, n := range o.names {
			withArguments[o.args] = append(withArguments[o.args], bothDashes(n)...)
			if o.help != "" {
				offered = append(offered, dashed(n))
			}
			if v := o.values(); v != nil {
				fmt.Fprintf(&cases, "        %s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")) ;;\n", strings.Join(bothDashes(n), "|"), strings.Join(v, " "))
			}
		}
	}
	return `# Completes tuttirun in bash. Written by: tuttirun --completion bash
_tuttirun() {
    local cur=${COMP_WORDS[COMP_CWORD]} line=${COMP_LINE:0:COMP_POINT} option= program= values=0 i
    local -a words
    COMPREPLY=()
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    for ((i = 1; i < ${#words[@]} - 1; i++)); do
        if ((values > 0)); then
            ((values--))
        elif [[ -n $program ]]; then
            [[ ${words[i]} == : ]] && program=
        else
            option=${words[i]}
            case $option in
            ` + strings.Join(withArguments[1], "|") + `) values=1 ;;
            ` + strings.Join(withArguments[2], "|") + `) values=2 ;;
            -*) ;;
            *) program=1 ;;
            esac
        fi
    done
    if ((values > 0)); then
        case $option in
` + cases.String() + `        esac
    elif [[ -n $program ]]; then
        : # the shell's own completion
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W '` + strings.Join(offered, " ") + `' -- "$cur"))
    else
        COMPREPLY=($(compgen -c -- "$cur"))
    fi
}
complete -o bashdefault -o default -F _tuttirun tuttirun
`
}

// zshCompletion returns a script for zsh, which describes the options to _arguments.
func zshCompletion() string {
	var b strings.Builder
	b.WriteString("#compdef tuttirun\n# Completes tuttirun in zsh. Written by: tuttirun --completion zsh\n_tuttirun() {\n    _arguments -A '-*' \\\n")
	quote := strings.NewReplacer("'", `'\''`, ":", `\:`, "[", `\[`, "]", `\]`)
	for _, o := range options() {
		if o.help == "" {
			continue
		}
		operands := ""
		for name := range strings.FieldsSeq(o.operand) {
			action := " "
			switch v := o.values(); {
			case v != nil:
				action = "(" + strings.Join(v, " ") + ")"
			case strings.HasPrefix(name, "FILE"), strings.HasPrefix(name, "PATTERN"):
				action = "_files"
			case strings.HasPrefix(name, "DIR"):
				action = "_files -/"
			case strings.HasPrefix(name, "COMMAND"):
				action = "_command_names -e"
			}
			operands += ":" + quote.Replace(name) + ":" + action
		}
		for _, n := range o.names {
			for _, spelled := range bothDashes(n) {
				fmt.Fprintf(&b, "        '*%s[%s]%s' \\\n", spelled, quote.Replace(o.help), operands)
			}
		}
	}
	b.WriteString(`        '(-)1:program:_command_names -e' '*::arguments:_normal'
}
if [ "$funcstack[1]" = _tuttirun ]; then
    _tuttirun "$@"
else
    compdef _tuttirun tuttirun
fi
`)
	return b.String()
}

// fishCompletion returns a script for fish, which declares each option.
func fishCompletion() string {
	var b, valued strings.Builder
	b.WriteString("# Completes tuttirun in fish. Written by: tuttirun --completion fish\n")
	quote := strings.NewReplacer(`\`, `\\`, "'", `\'`)
	for _, o := range options() {
		if o.rejected != "" {
			continue
		}
		for _, n := range o.names {
			if o.args > 0 {
				valued.WriteString(" " + strings.Join(bothDashes(n), " "))
			}
			if o.help == "" {
				continue
			}
			flag := "-o " + n
			if len(n) == 1 {
				flag = "-s " + n
			}
			fmt.Fprintf(&b, "complete -c tuttirun %s -l %s -d '%s'", flag, n, quote.Replace(o.help))
			switch v := o.values(); {
			case v != nil:
				fmt.Fprintf(&b, " -x -a '%s'", strings.Join(v, " "))
			case o.args > 0:
				b.WriteString(" -r")
			}
			b.WriteByte('\n')
		}
	}
	b.WriteString("complete -c tuttirun -x -a '(__fish_complete_subcommand --" + valued.String() + ")'\n")
	return b.String()
}

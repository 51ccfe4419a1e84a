package launch

import (
	"fmt"
	"strconv"

	"github.com/tutti-go/tutti/launch/internal/agent"
)

// agents holds the values of the options about tuttirun agent.
type agents struct {
	agent.Keys
	Port string
}

// agentOptions returns the options that make tuttirun agent, instead of ssh, start ranks on other
// hosts.
func agentOptions() []option {
	return []option{
		{names: []string{"agent-secret-file"}, args: 1, operand: "FILE", help: "start ranks on other hosts by tuttirun agent with this secret, and not by ssh",
			set: func(p *parser, a []string) error { p.agents.Secret = a[0]; return nil }},
		{names: []string{"agent-cert"}, args: 1, operand: "FILE", help: "the same with a certificate in place of a secret, in PEM",
			set: func(p *parser, a []string) error { p.agents.Cert = a[0]; return nil }},
		{names: []string{"agent-key"}, args: 1, operand: "FILE", help: "the certificate's private key",
			set: func(p *parser, a []string) error { p.agents.Key = a[0]; return nil }},
		{names: []string{"agent-ca"}, args: 1, operand: "FILE", help: "the CA of the agents",
			set: func(p *parser, a []string) error { p.agents.CA = a[0]; return nil }},
		{names: []string{"agent-port"}, args: 1, operand: "PORT", help: "the agents' port (" + agent.Port + ")",
			set: func(p *parser, a []string) error {
				if n, err := strconv.ParseUint(a[0], 10, 16); err != nil || n == 0 {
					return fmt.Errorf("got %q, want a port from 1 to 65535", a[0])
				}
				p.agents.Port = a[0]
				return nil
			}},
	}
}

// finishAgents reads the secret or the certificates, if the options name any.
func (p *parser) finishAgents() error {
	if p.agents == (agents{}) {
		return nil
	}
	d, err := agent.NewDialer(p.agents.Keys, p.agents.Port)
	if err != nil {
		return usagef("%v", err)
	}
	p.req.job.Starter = d
	return nil
}

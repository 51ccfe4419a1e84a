package bootstrap

import (
	"net"
	"os"
	"strings"

	"github.com/tutti-go/tutti/internal/vars"
)

// kubernetes reads the index that Kubernetes gives each pod of an Indexed Job, or of a JobSet with
// one such Job. The pods are named JOB-INDEX. With a headless service, these are also the names of
// hosts in a domain. The source finds the domain in the pod's own entry in /etc/hosts. The number
// of pods is not in the environment, so the manifest must set WORLD_SIZE.
func (f *finder) kubernetes() (*Job, error) {
	if !f.has(vars.PodIndex) || !f.has(vars.TorchSize) {
		return nil, nil
	}
	j := newJob(vars.PodIndex + ", " + vars.TorchSize)
	if err := f.rankAndSize(j, vars.PodIndex, vars.TorchSize); err != nil || j.Size == 1 {
		return j, err
	}
	name, domain, _ := strings.Cut(f.host(), ".")
	prefix, own := strings.CutSuffix(name, "-"+itoa(j.Rank))
	if text, err := f.hostsFile(); domain == "" && err == nil {
		domain = domainOf(name, text)
	}
	if !own || domain == "" {
		return nil, refuse(j.Rank, "%s=%d, but this pod's name %.80q in /etc/hosts does not say where rank 0 is: set %s to JOB-0.SERVICE, and the pods' subdomain to a headless service",
			vars.PodIndex, j.Rank, f.host(), vars.TorchAddr)
	}
	port, ok := f.get(vars.TorchPort)
	if !ok {
		port = defaultPort
	}
	j.Root = net.JoinHostPort(prefix+"-0."+domain, port)
	if err := checkAddr(j.Root); err != nil {
		return nil, badVariable(j.Rank, vars.TorchPort, port, err.Error(), "set it to a free port of the pod")
	}
	j.Name = nameFrom("k8s", j.Root)
	return j, f.identity(j)
}

// hostsFile returns the content of /etc/hosts.
func hostsFile() (string, error) {
	b, err := os.ReadFile("/etc/hosts")
	return string(b), err
}

// domainOf returns the domain of a host's name in the text of /etc/hosts, or "".
func domainOf(name, text string) string {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for field := range strings.FieldsSeq(line) {
			if domain, ok := strings.CutPrefix(field, name+"."); ok {
				return domain
			}
		}
	}
	return ""
}

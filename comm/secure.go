package comm

import (
	"strings"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
)

// secure decides how connections between hosts are protected:
//
//	WithTLS  plain  secret  connections between hosts
//	yes      no     any     TLS with the program's certificates, within hosts, too
//	yes      yes    any     none: Misuse
//	no       yes    any     plain; bodies carry a checksum; by TUTTI_INSECURE_PLAIN also without a secret
//	no       no     yes     mutual TLS under the job's CA
//	no       no     no      plain; only with WithInsecure, see package bootstrap
func (o *options) secure(job *bootstrap.Job) error {
	plain := o.plain || job.Plain
	switch {
	case plain && o.tls != nil:
		return fault.New(fault.Misuse, "init", job.Rank, "encryption: got both WithTLS and WithInsecurePlain or TUTTI_INSECURE_PLAIN, want only one")
	case plain:
		o.params.Checksums = true
		if job.Size > 1 {
			o.log.Warn("tutti: INSECURE: connections between hosts are not encrypted: an attacker on the network path can read and change the data (TUTTI_INSECURE_PLAIN or WithInsecurePlain)")
		}
		return nil
	case o.tls != nil:
		return nil
	}
	c, err := job.Credentials()
	if err != nil || c == nil {
		return err
	}
	o.tls = tlsopt.ForJob(c)
	if strings.Contains(o.transportName(), "verbs") {
		o.log.Warn("tutti: " + o.transportName() + " encrypts only the set-up of its connections: an attacker on the network path can read and change what passes by RDMA")
	}
	return nil
}

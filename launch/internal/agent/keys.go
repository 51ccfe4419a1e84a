package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/secretfile"
	"github.com/tutti-go/tutti/internal/tlsopt"
)

// maxKey is the maximum number of bytes of a file with a private key.
const maxKey = 64 << 10

// Keys say how agent and launcher authenticate each other: by a secret that both have, or by
// certificates of a CA that both trust. The fields are the names of files.
type Keys struct {
	Secret        string
	Cert, Key, CA string
}

// read returns the secret. Without a secret it returns the files of the certificates, as options of
// TLS. The user's options are named prefix followed by "secret-file", "cert", "key" and "ca".
func (k Keys) read(prefix string) (secret []byte, files *tlsopt.Options, err error) {
	got := k.Cert != "" || k.Key != "" || k.CA != ""
	switch {
	case k.Secret != "" && got:
		return nil, nil, fmt.Errorf("got %ssecret-file and certificates, want one of the two", prefix)
	case k.Secret != "":
		if secret, err = secretfile.Read(k.Secret); err != nil {
			err = fmt.Errorf("%ssecret-file %s: the file %w", prefix, k.Secret, err)
		}
		return secret, nil, err
	case k.Cert == "" || k.Key == "" || k.CA == "":
		return nil, nil, fmt.Errorf("got no %[1]ssecret-file, want one, or all of %[1]scert, %[1]skey and %[1]sca; "+
			"make a secret with (umask 077; openssl rand -hex 16 > FILE), and copy it to each host", prefix)
	}
	var refused *secretfile.FileError
	if _, err := secretfile.ReadPrivate(k.Key, maxKey); errors.As(err, &refused) {
		return nil, nil, fmt.Errorf("%skey %s: the file %s; want one that only its user may read", prefix, k.Key, refused.Why)
	}
	return nil, &tlsopt.Options{CertFile: k.Cert, KeyFile: k.Key, CAFile: k.CA, Mutual: true}, nil
}

// server returns the TLS configuration of an agent.
func (k Keys) server() (*tls.Config, error) {
	secret, files, err := k.read("--")
	if err != nil {
		return nil, err
	}
	if files == nil {
		return jobca.AgentConfig(secret, proto)
	}
	config, err := files.Server(proto)
	if err != nil {
		return nil, err
	}
	config.SessionTicketsDisabled = true
	return config, nil
}

// client returns the TLS configuration of a launcher. If its ServerName is "", the caller must set
// it to the name of the host that is dialled, and the agent's certificate must have that name.
func (k Keys) client() (*tls.Config, error) {
	secret, files, err := k.read("--agent-")
	if err != nil {
		return nil, err
	}
	if files == nil {
		return jobca.LauncherConfig(secret, whoAmI(), proto)
	}
	return files.Client(proto)
}

// whoAmI returns the user and the host of this process.
func whoAmI() string {
	name, host := fmt.Sprint(os.Geteuid()), "unknown host"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// dialTimeout bounds Start. An agent answers within handshakeTimeout, or closes the connection
// without an answer if other connections need its slot. Start then dials again, after dialPause.
// While no agent listens, Start dials again for absentTimeout, because a script or scheduler may
// start the launcher before the agents.
const (
	dialTimeout   = 30 * time.Second
	absentTimeout = 10 * time.Second
	dialPause     = 100 * time.Millisecond
)

// A Dialer asks the agents of hosts to start processes. Any goroutine may use it.
type Dialer struct {
	port   string
	config *tls.Config
	absent time.Duration // absentTimeout. Tests shorten it.
}

// NewDialer returns a Dialer. The port "" means Port.
func NewDialer(k Keys, port string) (*Dialer, error) {
	config, err := k.client()
	if err != nil {
		return nil, err
	}
	return &Dialer{port: cmp.Or(port, Port), config: config, absent: absentTimeout}, nil
}

// Start asks the agent of a host to start the program that the verb names, "remote" or "probe". It
// returns the connection to the standard input and output of the process. An error is one line,
// which does not name the host.
func (d *Dialer) Start(ctx context.Context, host, verb string) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, fmt.Errorf("no answer within %v", dialTimeout))
	defer cancel()
	address := net.JoinHostPort(strings.Trim(host, "[]"), d.port)
	config := d.config
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = strings.Trim(host, "[]")
	}
	for began := time.Now(); ; {
		conn, err := start(ctx, address, config, verb)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, d.failed(context.Cause(ctx))
		case !isClosedEarly(err) && !(isAbsent(err) && time.Since(began) < d.absent):
			return nil, d.failed(explain(err))
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return nil, d.failed(fmt.Errorf("%w; the last error: %w", context.Cause(ctx), err))
		}
	}
}

// maxError is the maximum number of characters of an error's text.
const maxError = 400

// failed returns the error of Start. Its text may quote an unverified certificate and goes to the
// user's terminal. So failed removes control characters and truncates the text.
func (d *Dialer) failed(err error) error {
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, err.Error())
	return fmt.Errorf("agent at port %s: %.*s", d.port, maxError, text)
}

// start dials once.
func start(ctx context.Context, address string, config *tls.Config, verb string) (conn *tls.Conn, err error) {
	nc, err := (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	// The end of the context ends all reads and writes below.
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Now()) })
	defer stop()
	conn = tls.Client(nc, config)
	defer func() {
		if err != nil {
			nc.Close()
		}
	}()
	if err = conn.Handshake(); err != nil {
		return nil, err
	}
	if err = writeText(conn, verb); err != nil {
		return nil, err
	}
	// An agent that refuses the launcher's certificate says so only now: TLS 1.3, RFC 8446, section 2.
	refusal, err := readText(conn)
	if err != nil {
		return nil, err
	}
	if refusal != "" {
		err = errRefused(refusal)
		return nil, err
	}
	if !stop() {
		err = context.Cause(ctx)
		return nil, err
	}
	return conn, nil
}

// An errRefused is the reason that an agent gives for a refusal.
type errRefused string

// Error implements error.
func (e errRefused) Error() string { return "it refuses: " + string(e) }

// isClosedEarly reports whether the far end has closed the connection without an answer.
func isClosedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isAbsent reports whether err says that no program listens at the agent's address, or that the
// host's name has no address yet.
func isAbsent(err error) bool {
	var notFound *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &notFound)
}

// explain replaces an error of the handshake by one that says what the user can do.
func explain(err error) error {
	var notFound *net.DNSError
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("no agent is there (connection refused): start tuttirun agent on that host, with --listen and the same port")
	case errors.As(err, &notFound):
		return fmt.Errorf("unknown host: %w", err)
	case errors.As(err, &plain):
		return errors.New("another program is there: it does not speak TLS; --agent-port names the agent's port")
	case errors.As(err, &authority):
		return errors.New("it has another secret, or a certificate of another CA: give agent and launcher the same secret file or CA")
	case errors.As(err, &name):
		return fmt.Errorf("its certificate is for another host, or only one of agent and launcher has a secret file: %w", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("its certificate has expired, or is not valid yet: %w; compare the clocks of both hosts", err)
	}
	// crypto/tls has no types for the alerts of the far end.
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return err
	}
	alert := remote.Err.Error()
	switch {
	case strings.Contains(alert, "unknown certificate authority"):
		return errors.New("it does not trust this launcher's certificate: give agent and launcher the same CA")
	case strings.Contains(alert, "certificate required"):
		return errors.New("it wants a certificate of its CA, and this launcher has none: give agent and launcher the same secret file or CA")
	case strings.Contains(alert, "expired certificate"):
		return errors.New("this launcher's certificate has expired, or the clock of that host is wrong")
	case strings.Contains(alert, "no application protocol"):
		return errors.New("it is of another version: install the same tuttirun on both hosts")
	case strings.Contains(alert, "bad certificate"):
		return errors.New("it does not accept this launcher's certificate: want one for TLS clients, of the agent's CA")
	}
	return err
}

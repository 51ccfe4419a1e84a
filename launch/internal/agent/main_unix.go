//go:build unix

package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// The exit codes of Main.
const (
	exitFailed = 1
	exitUsage  = 2
)

const usage = `usage: tuttirun agent --secret-file FILE [options]

Starts ranks on this host for a launcher elsewhere: tuttirun --agent. Runs as the
user whose ranks it starts, and in the foreground.

`

// Main is the program tuttirun agent. The parameter args holds the arguments after "agent", and
// program is the path of tuttirun. Main returns the exit code when it has been asked to end:
//
//	TERM                     accept no more launchers, and wait for the processes that run
//	a second TERM, INT, HUP  also end the processes
func Main(args []string, program string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		flags := new(options).flags()
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "tuttirun agent: %v\n", err)
		return exitUsage
	}
	if err := o.serve(program, slog.New(slog.NewTextHandler(stderr, nil))); err != nil {
		fmt.Fprintf(stderr, "tuttirun agent: %v\n", err)
		return exitFailed
	}
	return 0
}

// options holds the values of the command line's options.
type options struct {
	Keys
	listen    string
	jobs      int
	ranks     int
	allowRoot bool
}

// flags returns the options of the command line, which set the fields of o.
func (o *options) flags() *flag.FlagSet {
	f := flag.NewFlagSet("tuttirun agent", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.StringVar(&o.Secret, "secret-file", "", "`FILE` with the secret that launchers have, too; only this user may read it")
	f.StringVar(&o.Cert, "cert", "", "instead of a secret: `FILE` with this host's certificate, in PEM")
	f.StringVar(&o.Key, "key", "", "`FILE` with its private key; only this user may read it")
	f.StringVar(&o.CA, "ca", "", "`FILE` with the CA that signs launchers, and nobody else")
	f.StringVar(&o.listen, "listen", "127.0.0.1", "`ADDRESS[:PORT]` to listen on; port "+Port+" by default; :"+Port+" means all addresses")
	f.IntVar(&o.jobs, "max-jobs", 16, "run at most `N` jobs at once")
	f.IntVar(&o.ranks, "max-ranks", 512, "run at most `N` processes of one job at once")
	f.BoolVar(&o.allowRoot, "allow-run-as-root", false, "run even as root: every launcher is then root on this host")
	return f
}

// parse reads the command line.
func parse(args []string) (*options, error) {
	o := new(options)
	f := o.flags()
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("got the argument %q, want options only; see --help", f.Arg(0))
	case o.jobs < 1:
		return nil, fmt.Errorf("--max-jobs: got %d, want at least 1", o.jobs)
	case o.ranks < 1:
		return nil, fmt.Errorf("--max-ranks: got %d, want at least 1", o.ranks)
	case os.Geteuid() == 0 && !o.allowRoot:
		return nil, errors.New("got root as the user, want the user whose ranks it starts; " +
			"with --allow-run-as-root everyone who has the secret is root on this host")
	}
	if _, _, err := net.SplitHostPort(o.listen); err != nil {
		o.listen = net.JoinHostPort(strings.Trim(o.listen, "[]"), Port)
	}
	return o, nil
}

// serve runs the agent until a signal asks for its end.
func (o *options) serve(program string, log *slog.Logger) error {
	config, err := o.server()
	if err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(context.Background(), "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	a := New(config, program, map[string][]string{
		"remote": {"remote", "--max-ranks", strconv.Itoa(o.ranks)},
		"probe":  {"probe"},
	}, o.jobs, log)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	log.Info("tuttirun agent accepts launchers", "address", ln.Addr(), "user", whoAmI())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.Serve(ln)
	}()
	for {
		select {
		case <-ended:
			return nil
		case sig := <-signals:
			log.Info("a signal", "signal", sig)
			if sig == syscall.SIGTERM && !a.isDraining() {
				a.Drain()
			} else {
				a.End()
			}
		}
	}
}

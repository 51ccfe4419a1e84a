package doctor

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/internal/route"
	"github.com/tutti-go/tutti/internal/vars"
)

const (
	maxLine = 1 << 20

	// idleLimit ends a probe that has received no request for this long. The doctor's host may have
	// been cut off, so that the end of the input never arrives.
	idleLimit = 5 * time.Minute
)

// A request asks a probe for one thing, so exactly one field is set.
type request struct {
	Facts  *factsRequest  `json:"facts,omitempty"`
	Clock  bool           `json:"clock,omitempty"`
	Listen *listenRequest `json:"listen,omitempty"`
	Dial   *dialRequest   `json:"dial,omitempty"`
}

// A factsRequest asks for Facts, and names the hosts to look up.
type factsRequest struct {
	Names []string `json:"names"`
}

// A listenRequest asks for a listener.
type listenRequest struct {
	Token     string `json:"token"`     // the first bytes of each connection
	Root      string `json:"root"`      // host:port of the first host's listener; "" for the first host
	Name      string `json:"name"`      // the name by which the other hosts look this host up; "" if they cannot
	Other     string `json:"other"`     // the name of another host; "" if there is none
	Ports     string `json:"ports"`     // as in TUTTI_LISTEN; "" lets the system choose
	Interface string `json:"interface"` // as in TUTTI_INTERFACE
}

// A dialRequest asks for connections to listeners, all at the same time.
type dialRequest struct {
	Token     string   `json:"token"`
	Addresses []string `json:"addresses"`
	Measure   bool     `json:"measure"`
}

// An answer has the field of its request, or the text of an error.
type answer struct {
	Error     string     `json:"error,omitempty"`
	Facts     *Facts     `json:"facts,omitempty"`
	Clock     int64      `json:"clock,omitempty"` // in nanoseconds since 1970
	Listening *Listening `json:"listening,omitempty"`
	Pairs     []*Pair    `json:"pairs,omitempty"`
}

// fits reports whether an answer without an error has what the request asks for.
func (a *answer) fits(r *request) bool {
	switch {
	case r.Facts != nil:
		return a.Facts != nil
	case r.Listen != nil:
		return a.Listening != nil
	case r.Dial != nil:
		return len(a.Pairs) == len(r.Dial.Addresses) && !slices.Contains(a.Pairs, nil)
	}
	return true
}

// Serve is the program of a probe. It answers requests until the end of in, or until idleLimit has
// passed without a request. Before it returns, it ends the listener and the connections that it has
// opened.
func Serve(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()

	requests := make(chan *request)
	broken := make(chan error, 1)
	go func() { // ends at the end of in, or with the process
		broken <- readRequests(ctx, in, requests)
		cancel() // a request that is being answered ends early
	}()
	p := &probe{run: ctx, background: &background}
	write := json.NewEncoder(out)
	for {
		select {
		case r := <-requests:
			if err := write.Encode(p.handle(ctx, r)); err != nil {
				return fmt.Errorf("probe: answer: %w", err)
			}
		case err := <-broken:
			return err
		case <-time.After(idleLimit):
			return fmt.Errorf("probe: got no request for %v, want one or the end of the input", idleLimit)
		}
	}
}

// readRequests reads lines until the end of in, or until ctx ends.
func readRequests(ctx context.Context, in io.Reader, requests chan<- *request) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		r := new(request)
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			return fmt.Errorf("probe: request: %w: standard input is for tuttirun doctor", err)
		}
		select {
		case requests <- r:
		case <-ctx.Done():
			return nil
		}
	}
	return lines.Err()
}

// A probe is the state of Serve.
type probe struct {
	run        context.Context // ends with Serve
	background *sync.WaitGroup
	listens    bool
}

// handle answers a request.
func (p *probe) handle(ctx context.Context, r *request) *answer {
	ctx, cancel := context.WithTimeout(ctx, r.limit())
	defer cancel()
	a := new(answer)
	var err error
	switch {
	case r.Facts != nil:
		a.Facts = collect(ctx, r.Facts.Names)
	case r.Clock:
		a.Clock = time.Now().UnixNano()
	case r.Listen != nil:
		a.Listening, err = p.listen(ctx, r.Listen)
	case r.Dial != nil:
		a.Pairs = dialAll(ctx, r.Dial)
	default:
		err = errors.New("the probe does not know this request: install the same tuttirun on all hosts")
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// limit returns how long a probe may take for a request. The doctor waits a little longer.
func (r *request) limit() time.Duration {
	switch {
	case r.Dial != nil && r.Dial.Measure:
		return connLimit
	case r.Dial != nil:
		return 4 * stepLimit // connect, token, and two messages
	}
	return 2 * stepLimit
}

// listen opens a listener in the same way as a rank of a job on this host would.
func (p *probe) listen(ctx context.Context, r *listenRequest) (*Listening, error) {
	if p.listens {
		return nil, errors.New("the probe listens already")
	}
	job, err := bootstrap.Find(r.options())
	if err != nil {
		return nil, err
	}
	l, err := job.Listen(ctx)
	if err != nil {
		return nil, err
	}
	p.listens = true
	p.background.Go(func() { serveConns(p.run, l, r.Token) })

	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}
	addr, why := r.reachedAt(ctx, host)
	on := interfaceOf(interfaces(), addr)
	at := &Listening{Address: net.JoinHostPort(addr.String(), port), Interface: on.Name, MTU: on.MTU, Speed: on.Speed, Why: why}
	if r.Root == "" && r.Interface == "" && r.Name != "" {
		at.Address = net.JoinHostPort(r.Name, port) // the other ranks look up the name of rank 0's host
	}
	return at, nil
}

// options returns the options by which a rank on this host would find its job. On the first host it
// is rank 0, which listens on all interfaces. On other hosts it is another rank.
func (r *listenRequest) options() bootstrap.Options {
	set := map[string]string{vars.Interface: r.Interface}
	o := bootstrap.Options{Insecure: true, Listen: r.Ports, Lookup: func(name string) (string, bool) {
		v, ok := set[name]
		return v, ok
	}}
	if r.Root == "" {
		set[vars.Bootstrap] = "single"
		o.Listen = cmp.Or(r.Ports, ":0")
	} else {
		set[vars.Rank], set[vars.Size], set[vars.Root] = "1", "2", r.Root
	}
	return o
}

// reachedAt returns the address at which other hosts reach a listener, and why. The parameter bound
// is the host of the listener's address.
func (r *listenRequest) reachedAt(ctx context.Context, bound string) (addr netip.Addr, why string) {
	addr, err := netip.ParseAddr(bound)
	switch {
	case err == nil && !addr.IsUnspecified() && r.Interface != "":
		return addr, "selected by " + strconv.Quote(r.Interface)
	case err == nil && !addr.IsUnspecified():
		return addr, "the route to " + r.Root
	case r.Root != "":
		addr, _ = route.To(ctx, r.Root)
		return addr, "the route to " + r.Root
	}
	addrs, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", r.Name) // on an error, the routes decide
	for _, a := range addrs {
		if a = a.Unmap(); !a.IsLoopback() && interfaceOf(interfaces(), a).Name != "" {
			return a, "the address of its name"
		}
	}
	if r.Other != "" {
		if addr, err = route.To(ctx, net.JoinHostPort(r.Other, strconv.Itoa(route.Port))); err == nil && !addr.IsLoopback() {
			return addr, "the route to " + r.Other
		}
	}
	if addr, err = route.Default(ctx); err == nil {
		return addr, "the default route"
	}
	return netip.IPv6Unspecified(), "no route leads to other hosts"
}

// dialAll dials all addresses at the same time.
func dialAll(ctx context.Context, r *dialRequest) []*Pair {
	links := make([]*Pair, len(r.Addresses))
	var all sync.WaitGroup
	for i, address := range r.Addresses {
		all.Go(func() { links[i] = examine(ctx, address, r) })
	}
	all.Wait()
	return links
}

// examine dials one address.
func examine(ctx context.Context, address string, r *dialRequest) *Pair {
	link := &Pair{Address: address}
	c, trouble, err := dial(ctx, address, r.Token)
	if err == nil {
		defer c.close()
		if r.Measure {
			link.Latency, err = c.latency()
			if err == nil {
				link.Bandwidth, err = c.bandwidth()
			}
		} else {
			trouble, err = c.check()
		}
		link.PathMTU = pathMTU(c.conn)
	}
	if link.Trouble = trouble; err != nil {
		link.Trouble, link.Error = cmp.Or(trouble, troubleOther), err.Error()
	}
	return link
}

package doctor

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	atOnce      = 32 // hosts on which a probe is started at the same time
	allPairs    = 16 // with at most this many hosts, each dials all others
	maxMeasured = 24 // pairs
	clockRounds = 4

	// startLimit is how long a host may take to start its probe and to send the first answer.
	startLimit = 30 * time.Second
)

// A Target is a host to examine.
type Target struct {
	Name  string
	Slots int

	// LookUp returns the name by which the other hosts look the host up. It returns "" if they cannot
	// look it up, because only ssh's configuration knows the host's name. If LookUp is nil, the other
	// hosts look up Name.
	LookUp func(ctx context.Context) string

	// Start starts a probe on the host. The result is the probe's standard input and output. Close
	// ends the probe, and a Read that is blocked. If the result is an explainer, its Explain says why
	// the probe has ended.
	Start func(ctx context.Context) (io.ReadWriteCloser, error)
}

// Options say which hosts to examine, and how their ranks would listen.
type Options struct {
	Targets   []Target
	Interface string // as in TUTTI_INTERFACE
	Ports     string // as in TUTTI_LISTEN, without a host
}

// Examine collects a report on hosts, and diagnoses it. It returns when each host has answered or
// has exceeded its time limit, or when ctx ends. By then all probes have ended.
func Examine(ctx context.Context, o Options) *Examination {
	e := &examiner{Options: o, token: rand.Text()}
	e.Pairs = []*Pair{} // not nil, so that JSON has an empty list
	for _, t := range o.Targets {
		h := &HostReport{Name: t.Name, Slots: t.Slots, LookedUp: t.Name}
		e.Hosts = append(e.Hosts, h)
		e.clients = append(e.clients, &client{HostReport: h, target: t})
	}
	defer e.each(func(_ int, c *client) { c.end() })
	e.each(func(_ int, c *client) {
		if c.target.LookUp != nil {
			c.LookedUp = c.target.LookUp(ctx)
		}
	})
	e.each(func(i int, c *client) { e.facts(ctx, i, c) })
	e.listen(ctx)
	e.dial(ctx)
	e.measure(ctx)
	if err := context.Cause(ctx); err != nil {
		e.Notes = append(e.Notes, fmt.Sprintf("the examination has not been finished: %v", err))
	}
	e.Faults = Diagnose(&e.Examination)
	return &e.Examination
}

// An examiner is one call of Examine.
type examiner struct {
	Options
	Examination
	token   string
	clients []*client
}

// A client is a host and the connection to its probe. One goroutine at a time uses it.
type client struct {
	*HostReport
	target Target
	conn   io.ReadWriteCloser // nil before the start, and after a failure
	out    *bufio.Scanner
}

// each calls f for all hosts, for at most atOnce hosts at the same time. It returns when all
// calls have returned.
func (e *examiner) each(f func(i int, c *client)) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, c := range e.clients {
		slots <- struct{}{}
		all.Go(func() {
			f(i, c)
			<-slots
		})
	}
	all.Wait()
}

// ask sends a request and returns the answer. If there is no answer, if the answer is an error, or
// if the answer does not fit the request, ask records a failure of the host and returns nil. After
// a failure of the connection, ask sends the host no further request.
func (c *client) ask(ctx context.Context, stage string, r *request, limit time.Duration) *answer {
	if c.conn == nil {
		return nil
	}
	a, err := c.exchange(ctx, r, limit)
	if err != nil {
		conn := c.conn
		c.end()
		if x, ok := conn.(explainer); ok {
			err = x.Explain(err)
		}
		c.fail(ctx, stage, err.Error())
		return nil
	}
	if a.Error == "" && !a.fits(r) {
		a.Error = "the answer does not fit the request: install the same tuttirun on all hosts"
	}
	if a.Error != "" {
		c.fail(ctx, stage, a.Error)
		return nil
	}
	return a
}

// fail records the first failure of a host. It records nothing once the examination has been
// canceled.
func (c *client) fail(ctx context.Context, stage, text string) {
	if c.Error == "" && ctx.Err() == nil {
		c.Stage, c.Error = stage, text
	}
}

// exchange sends a request and reads its answer. After the limit it closes the connection, which
// unblocks the read.
func (c *client) exchange(ctx context.Context, r *request, limit time.Duration) (*answer, error) {
	late := fmt.Errorf("got no answer within %v", limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	conn := c.conn
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return nil, cmp.Or(context.Cause(ctx), io.ErrUnexpectedEOF)
	}
	if !c.out.Scan() {
		return nil, cmp.Or(context.Cause(ctx), c.out.Err(), io.ErrUnexpectedEOF)
	}
	a := new(answer)
	if err := json.Unmarshal(c.out.Bytes(), a); err != nil {
		return nil, fmt.Errorf("got %.80q, want the answer of tuttirun probe: a login script must print nothing if it is not interactive", c.out.Bytes())
	}
	return a, nil
}

// end ends the probe.
func (c *client) end() {
	if c.conn != nil {
		c.conn.Close() // the host has no further part in the examination
		c.conn = nil
	}
}

// An explainer is a connection to a process. Connected tells it that the process has answered.
// After Close, Explain waits for the end of the process, and returns why the process has ended, or
// err if that is unknown.
type explainer interface {
	Connected()
	Explain(err error) error
}

// Local is Target.Start for this host. The probe runs in this process.
func Local(context.Context) (io.ReadWriteCloser, error) {
	here, there := net.Pipe()
	go func() { // ends when the caller closes its end
		Serve(there, there) // the caller sees an error as the end of the output
		there.Close()
	}()
	return here, nil
}

// facts starts a probe, collects its facts and compares its clock.
func (e *examiner) facts(ctx context.Context, i int, c *client) {
	conn, err := c.target.Start(ctx)
	if err != nil {
		c.fail(ctx, stageStart, err.Error())
		return
	}
	c.conn, c.out = conn, bufio.NewScanner(conn)
	c.out.Buffer(nil, maxLine)
	r := &request{Facts: &factsRequest{}}
	for _, j := range peersOf(i, len(e.Hosts)) {
		if name := e.Hosts[j].LookedUp; name != "" {
			r.Facts.Names = append(r.Facts.Names, name)
		}
	}
	a := c.ask(ctx, stageFacts, r, startLimit)
	if a == nil {
		return
	}
	c.Facts = a.Facts
	if x, ok := conn.(explainer); ok {
		x.Connected()
	}
	for range clockRounds {
		sent := time.Now()
		a := c.ask(ctx, stageClock, &request{Clock: true}, stepLimit)
		if a == nil {
			return
		}
		elapsed := time.Since(sent)
		if c.Clock == nil || elapsed/2 < c.Clock.Within {
			c.Clock = &Clock{Offset: time.Unix(0, a.Clock).Sub(sent.Add(elapsed / 2).Round(0)), Within: elapsed / 2}
		}
	}
}

// listen opens the listener of the first host, and then those of the other hosts, which get the
// address of the first one.
func (e *examiner) listen(ctx context.Context) {
	root := ""
	open := func(c *client) {
		r := &request{Listen: &listenRequest{Token: e.token, Root: root, Name: c.LookedUp, Ports: e.Ports, Interface: e.Interface}}
		if i := slices.IndexFunc(e.clients, func(o *client) bool { return o != c && o.LookedUp != "" }); i >= 0 {
			r.Listen.Other = e.clients[i].LookedUp
		}
		if a := c.ask(ctx, stageListen, r, r.limit()+stepLimit); a != nil {
			c.Listening = a.Listening
		}
	}
	first := slices.IndexFunc(e.clients, func(c *client) bool {
		open(c)
		return c.Listening != nil
	})
	if first < 0 {
		return
	}
	root = e.clients[first].Listening.Address
	e.each(func(i int, c *client) {
		if i > first {
			open(c)
		}
	})
}

// dial lets each host dial its peers.
func (e *examiner) dial(ctx context.Context) {
	links := make([][]*Pair, len(e.clients))
	e.each(func(i int, c *client) {
		var to []*client
		r := &request{Dial: &dialRequest{Token: e.token}}
		for _, j := range peersOf(i, len(e.clients)) {
			if q := e.clients[j]; q.Listening != nil {
				to = append(to, q)
				r.Dial.Addresses = append(r.Dial.Addresses, q.Listening.Address)
			}
		}
		if len(to) == 0 {
			return
		}
		a := c.ask(ctx, stageDial, r, r.limit()+stepLimit)
		if a == nil {
			return
		}
		for k, l := range a.Pairs {
			l.From, l.To, l.Speed = c.Name, to[k].Name, slower(c.Listening, to[k].Listening)
		}
		links[i] = a.Pairs
	})
	e.Pairs = append(e.Pairs, slices.Concat(links...)...)
	if n := len(e.clients); n > allPairs {
		e.Notes = append(e.Notes, fmt.Sprintf("%d of %d pairs of hosts were dialled: a sample, in which each host dials %d others", len(e.Pairs), n*(n-1), len(peersOf(0, n))))
	}
}

// slower returns the speed of the slower of two interfaces, or 0 if a speed is not known.
func slower(a, b *Listening) int {
	if a == nil || b == nil {
		return 0
	}
	return min(a.Speed, b.Speed)
}

// measure measures the working links one after another, so that they do not compete for a host or a
// network.
func (e *examiner) measure(ctx context.Context) {
	var good []*Pair
	for _, l := range e.Pairs {
		if l.Trouble == "" {
			good = append(good, l)
		}
	}
	sample := spread(good, maxMeasured)
	if len(sample) < len(good) {
		e.Notes = append(e.Notes, fmt.Sprintf("%d of %d links were measured: a sample", len(sample), len(good)))
	}
	for _, l := range sample {
		c := e.clients[slices.IndexFunc(e.clients, func(c *client) bool { return c.Name == l.From })]
		r := &request{Dial: &dialRequest{Token: e.token, Addresses: []string{l.Address}, Measure: true}}
		a := c.ask(ctx, stageMeasure, r, r.limit()+stepLimit)
		if a == nil {
			continue
		}
		m := a.Pairs[0]
		l.Latency, l.Bandwidth, l.Trouble, l.Error = m.Latency, m.Bandwidth, m.Trouble, m.Error
	}
}

// spread returns at most n elements of the slice all, at equal distances.
func spread[T any](all []T, n int) []T {
	if len(all) <= n {
		return all
	}
	var some []T
	for i := range n {
		some = append(some, all[i*len(all)/n])
	}
	return some
}

// peersOf returns the hosts that host i of n dials. Up to allPairs hosts, that is all others. With
// more hosts, it is the first host, and those at distances that are powers of two, so that each
// host is dialled from several.
func peersOf(i, n int) (peers []int) {
	if n > allPairs {
		peers = append(peers, 0)
		for d := 1; d < n; d *= 2 {
			peers = append(peers, (i+d)%n)
		}
		slices.Sort(peers)
		return slices.DeleteFunc(slices.Compact(peers), func(j int) bool { return j == i })
	}
	for j := range n {
		if j != i {
			peers = append(peers, j)
		}
	}
	return peers
}

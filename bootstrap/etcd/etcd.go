// Package etcd lets the ranks of a job meet in an etcd cluster. It is for jobs without a launcher,
// on hosts without a shared directory. A program passes it to Init:
//
//	comm.Init(ctx, comm.WithStore(etcd.New(etcd.Config{})))
//
// TUTTI_STORE=etcd://HOST:PORT[,HOST:PORT...]/PREFIX then names the cluster. Jobs with the same
// prefix need different names, TUTTI_JOB. A program that does not import this package does not link
// etcd's client.
//
// # Keys
//
// The key PREFIX/JOB.INCARNATION/RANK holds the text of a rank, which package bootstrap defines.
// Rank 0 removes the keys once all ranks have met, and a rank removes its own key when it gives up.
// Each key has a lease of 30 seconds, which the rank renews while it waits. So the key of a killed
// rank expires. A rank watches the keys that it reads, and does not poll.
//
// The keys hold no secret: who can read them depends on the cluster. A job on several hosts needs
// TUTTI_SECRET_FILE.
//
// # When etcd does not answer
//
// Each request has a deadline of 10 seconds. While a rank waits for others, it renews its lease,
// and so notices that etcd is gone 30 seconds after the last answer to a renewal. In both cases the
// error of Init names etcd.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/connectivity"

	"github.com/tutti-go/tutti/bootstrap"
)

// A Config has the options of etcd's client: TLS, Username, Password and others. The URL sets
// Endpoints. If none of TLS, Username and Token is set, the variables of etcdctl apply:
// ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY name files, and ETCDCTL_USER and ETCDCTL_PASSWORD
// the user. If Logger is not set, the client logs nothing, because Init returns its errors.
type Config = clientv3.Config

// New returns the Store of etcd:// URLs. Its clients have the given configuration.
func New(c Config) bootstrap.Store { return newStore(c) }

// A store is the Store of etcd:// URLs.
type store struct {
	config Config
	call   time.Duration // the deadline of a request
	lease  time.Duration // how long a key outlives its rank
}

// newStore returns a store with the deadlines of the package comment.
func newStore(c Config) *store {
	return &store{config: c, call: 10 * time.Second, lease: 30 * time.Second}
}

// Scheme implements bootstrap.Store.
func (s *store) Scheme() string { return "etcd" }

// Open implements bootstrap.Store.
func (s *store) Open(ctx context.Context, url, job string, rank, size int) (bootstrap.Entries, error) {
	endpoints, prefix, err := parse(url)
	if err != nil {
		return nil, err
	}
	config, err := s.complete(endpoints)
	if err != nil {
		return nil, err
	}
	e := &entries{
		endpoints: strings.Join(endpoints, ","), dir: prefix + "/" + job + "/", rank: rank, call: s.call,
		texts: make([]string, size), revisions: make([]int64, size), changed: true,
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, e.cancel) // until everything is open
	defer stop()
	config.Context = e.ctx
	if e.client, err = clientv3.New(config); err == nil {
		err = e.start(ctx, s.lease)
	}
	if err != nil {
		err = e.failed(ctx, err)
		e.Close()
		return nil, err
	}
	return e, nil
}

// parse returns the endpoints and the prefix of an etcd:// URL. The prefix begins with a slash.
func parse(url string) (endpoints []string, prefix string, err error) {
	hosts, prefix, ok := strings.Cut(strings.TrimPrefix(url, "etcd://"), "/")
	prefix = strings.Trim(prefix, "/")
	endpoints = strings.Split(hosts, ",")
	ok = ok && prefix != "" && strings.HasPrefix(url, "etcd://")
	for _, e := range endpoints {
		host, port, err := net.SplitHostPort(e)
		ok = ok && err == nil && host != "" && port != "" && !strings.Contains(host, "@")
	}
	if !ok {
		return nil, "", errors.New("the URL is not etcd://HOST:PORT[,HOST:PORT...]/PREFIX: give the cluster's client addresses, and a prefix of the keys; ETCDCTL_USER names the user")
	}
	return endpoints, "/" + prefix, nil
}

// complete returns the configuration of a client.
func (s *store) complete(endpoints []string) (Config, error) {
	c := s.config
	c.Endpoints = endpoints
	c.DialTimeout = cmp.Or(c.DialTimeout, s.call)
	if c.Logger == nil && c.LogConfig == nil {
		c.Logger = zap.NewNop()
	}
	if c.TLS != nil || c.Username != "" || c.Token != "" {
		return c, nil
	}
	var named bool
	if c.Username, c.Password, named = strings.Cut(os.Getenv("ETCDCTL_USER"), ":"); !named {
		c.Password = os.Getenv("ETCDCTL_PASSWORD")
	}
	files := transport.TLSInfo{
		TrustedCAFile: os.Getenv("ETCDCTL_CACERT"), CertFile: os.Getenv("ETCDCTL_CERT"), KeyFile: os.Getenv("ETCDCTL_KEY"),
	}
	if files.TrustedCAFile == "" && files.CertFile == "" && files.KeyFile == "" {
		return c, nil
	}
	var err error
	if c.TLS, err = files.ClientConfig(); err != nil {
		return c, fmt.Errorf("ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY: %w", err)
	}
	return c, nil
}

// entries are a rank's view of the keys of a job. Goroutines of the client renew the lease and
// receive changes, until Close.
type entries struct {
	endpoints string // the endpoints of the URL, for errors
	dir       string // the prefix of all keys of the job
	rank      int
	call      time.Duration
	client    *clientv3.Client   // nil if it could not be made
	ctx       context.Context    // the context of the watches and of the renewal of the lease
	cancel    context.CancelFunc // ends ctx

	lease   clientv3.LeaseID
	renewed <-chan *clientv3.LeaseKeepAliveResponse // closed when the lease is lost
	watches [2]clientv3.WatchChan                   // the second is nil on rank 0

	texts     []string
	revisions []int64 // the revision of each text; an older change is ignored
	changed   bool    // the texts have changed since the last Next
}

// start makes the lease, reads the keys, and starts to watch them.
func (e *entries) start(ctx context.Context, lease time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, e.call)
	defer cancel()
	granted, err := e.client.Grant(limited, int64(lease/time.Second))
	if err != nil {
		return err
	}
	e.lease = granted.ID
	if e.renewed, err = e.client.KeepAlive(e.ctx, e.lease); err != nil {
		return err
	}
	// Only rank 0 reads the keys of all ranks. If every rank did, the answers would grow with the
	// square of the number of ranks.
	keys := []clientv3.Op{clientv3.OpGet(e.dir, clientv3.WithPrefix())}
	if e.rank != 0 {
		keys = []clientv3.Op{clientv3.OpGet(e.key(0)), clientv3.OpGet(e.key(e.rank))}
	}
	got, err := e.client.Txn(limited).Then(keys...).Commit()
	if err != nil {
		return err
	}
	for _, answer := range got.Responses {
		for _, kv := range answer.GetResponseRange().Kvs {
			e.set(string(kv.Key), string(kv.Value), kv.ModRevision)
		}
	}
	from := clientv3.WithRev(got.Header.Revision + 1)
	if e.rank == 0 {
		e.watches[0] = e.client.Watch(e.ctx, e.dir, from, clientv3.WithPrefix())
	} else { // only rank 0 watches all keys, for the same reason
		e.watches[0] = e.client.Watch(e.ctx, e.key(0), from)
		e.watches[1] = e.client.Watch(e.ctx, e.key(e.rank), from)
	}
	return nil
}

// key returns the key of a rank.
func (e *entries) key(rank int) string { return e.dir + strconv.Itoa(rank) }

// set records the text of a key, which is "" if the key is removed. It ignores a change that is
// older than the recorded text, and the key of a rank that the job does not have.
func (e *entries) set(key, text string, revision int64) {
	rank, err := strconv.Atoi(strings.TrimPrefix(key, e.dir))
	if err != nil || rank < 0 || rank >= len(e.texts) || key != e.key(rank) || revision <= e.revisions[rank] {
		return
	}
	e.texts[rank], e.revisions[rank], e.changed = text, revision, true
}

// Next implements bootstrap.Entries.
func (e *entries) Next(ctx context.Context) ([]string, error) {
	for !e.changed {
		var news clientv3.WatchResponse
		var more bool
		select {
		case news, more = <-e.watches[0]:
		case news, more = <-e.watches[1]:
		case _, more = <-e.renewed:
			if !more && ctx.Err() == nil {
				return nil, fmt.Errorf("etcd at %s: the lease of this rank was not renewed: etcd is gone, or this process was stopped for too long", e.endpoints)
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if err := news.Err(); err != nil || !more {
			return nil, e.failed(ctx, cmp.Or(err, errors.New("etcd has ended the watch of the keys")))
		}
		for _, event := range news.Events {
			e.set(string(event.Kv.Key), string(event.Kv.Value), event.Kv.ModRevision)
		}
	}
	e.changed = false
	return e.texts, nil
}

// Write implements bootstrap.Entries.
func (e *entries) Write(ctx context.Context, text string) error {
	limited, cancel := context.WithTimeout(ctx, e.call)
	defer cancel()
	put, err := e.client.Put(limited, e.key(e.rank), text, clientv3.WithLease(e.lease))
	if err != nil {
		return e.failed(ctx, err)
	}
	e.set(e.key(e.rank), text, put.Header.Revision)
	return nil
}

// maxOps is the number of operations in one transaction. etcd allows 128 by default.
const maxOps = 100

// Remove implements bootstrap.Entries.
func (e *entries) Remove(ctx context.Context, ranks ...int) error {
	limited, cancel := context.WithTimeout(ctx, e.call)
	defer cancel()
	for some := range slices.Chunk(ranks, maxOps) {
		var ops []clientv3.Op
		for _, r := range some {
			ops = append(ops, clientv3.OpDelete(e.key(r)))
		}
		if _, err := e.client.Txn(limited).Then(ops...).Commit(); err != nil {
			return e.failed(ctx, err)
		}
	}
	return nil
}

// failed returns the error of a request, or ctx's if ctx has ended.
func (e *entries) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.Is(err, context.DeadlineExceeded):
	case e.client != nil && e.client.ActiveConnection().GetState() == connectivity.Ready:
		err = fmt.Errorf("no answer within %v (%w)", e.call, err)
	default:
		err = fmt.Errorf("no connection within %v (%w): check the address, and whether etcd expects TLS (ETCDCTL_CACERT)", e.call, err)
	}
	return fmt.Errorf("etcd at %s: %w", e.endpoints, err)
}

// Close implements bootstrap.Entries. It does not revoke the lease, which expires by itself.
func (e *entries) Close() error {
	e.cancel()
	if e.client == nil {
		return nil
	}
	return e.client.Close()
}

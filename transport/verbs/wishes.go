package verbs

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// wishes are what a user says of the device and of the queue pairs on it, by
// variables, since they differ from host to host. They are immutable.
type wishes struct {
	device   string // "": any; else one of rails, or several before ownRail
	rails    []rail // of device
	turn     int    // which rank of its host this is
	turnBy   string // the variable that says so
	port     int    // 0: any
	gid      int    // index; -1: the best
	family   string // of the GID: "ipv4", "ipv6" or "": any, ipv4 before ipv6
	roce     int    // version of the GID; 0: any, 2 before 1
	pkey     int    // index
	class    int    // traffic class
	level    int    // service level
	mtu      int    // in bytes; 0: the port's
	timeout  int    // of a packet: 4.096 µs times two to the power of this
	retries  int    // of a packet
	rnr      int    // of a packet that meets no receive
	depth    int    // 0: the default
	buffer   int    // the same
	strip    int    // the same
	cache    int    // the same
	fresh    int    // 1: Options.Fresh
	waiters  int    // goroutines that wait for events
	problems []error
}

// A wish is one variable: ours, TensorFlow's for the same (contrib/verbs/README.md
// of TensorFlow 1.15; "" where it has none), and what values it takes.
type wish struct {
	name, old string
	value     *int
	text      *string
	min, max  int
	words     []string // of text; nil: any
}

func (w *wishes) all() []wish {
	return []wish{
		{name: "DEVICE", old: "RDMA_DEVICE", text: &w.device},
		{name: "PORT", old: "RDMA_DEVICE_PORT", value: &w.port, min: 0, max: 255},
		{name: "GID_INDEX", old: "RDMA_GID_INDEX", value: &w.gid, min: -1, max: 255},
		{name: "GID_FAMILY", text: &w.family, words: []string{"ipv4", "ipv6"}},
		{name: "ROCE_VERSION", value: &w.roce, min: 0, max: 2},
		{name: "PKEY_INDEX", old: "RDMA_QP_PKEY_INDEX", value: &w.pkey, min: 0, max: math.MaxUint16},
		{name: "TRAFFIC_CLASS", old: "RDMA_TRAFFIC_CLASS", value: &w.class, min: 0, max: 255},
		{name: "SERVICE_LEVEL", old: "RDMA_QP_SL", value: &w.level, min: 0, max: 15},
		{name: "MTU", old: "RDMA_QP_MTU", value: &w.mtu, min: 0, max: 4096},
		{name: "TIMEOUT", old: "RDMA_QP_TIMEOUT", value: &w.timeout, min: 1, max: 22},
		{name: "RETRIES", old: "RDMA_QP_RETRY_COUNT", value: &w.retries, min: 0, max: 6},
		{name: "RNR_RETRIES", value: &w.rnr, min: 0, max: 6},
		{name: "DEPTH", old: "RDMA_QP_QUEUE_DEPTH", value: &w.depth, min: minDepth, max: maxDepth},
		{name: "BUFFER", value: &w.buffer, min: minBuffer, max: maxBuffer},
		{name: "STRIP", value: &w.strip, min: -1, max: maxStrip},
		{name: "CACHE", value: &w.cache, min: -1, max: math.MaxInt},
		{name: "FRESH", value: &w.fresh, min: 0, max: 1},
		{name: "WAITERS", value: &w.waiters, min: 1, max: maxWaiters},
	}
}

const ourPrefix = "TUTTI_VERBS_"

// wishesOf reads the variables. Ours win over TensorFlow's; a value that cannot be
// is an error that names the variable, and never a default in silence. TensorFlow's
// retry count of 7 becomes 6, for 7 has some drivers try for ever.
func wishesOf(getenv func(string) string) (*wishes, error) {
	w := &wishes{gid: -1, timeout: 14, retries: 6, rnr: 6, waiters: 1}
	said := make(map[string]string) // the variable that was set, by its name here
	for _, v := range w.all() {
		name, text := ourPrefix+v.name, getenv(ourPrefix+v.name)
		if text == "" && v.old != "" {
			name, text = v.old, getenv(v.old)
			if name == "RDMA_QP_RETRY_COUNT" && text == "7" {
				text = "6"
			}
			if name == "RDMA_QP_QUEUE_DEPTH" && text != "" {
				text = atMost(text, maxDepth)
			}
		}
		if text != "" {
			said[v.name] = name
			w.note(v.set(name, text))
		}
	}
	var err error
	w.rails, err = railsOf(said["DEVICE"], w.device)
	w.note(err)
	if len(w.rails) > 1 { // else it says nothing of ours
		w.turn, w.turnBy, err = turnOf(getenv)
		w.note(err)
	}
	if w.mtu != 0 && mtuOf(w.mtu) == 0 {
		w.note(fmt.Errorf("%s=%d, want 256, 512, 1024, 2048 or 4096", said["MTU"], w.mtu))
	}
	return w, errors.Join(w.problems...)
}

func (w *wishes) note(err error) {
	if err != nil {
		w.problems = append(w.problems, err)
	}
}

// atMost bounds a number that TensorFlow takes more of: a queue's depth is a wish.
func atMost(text string, most int) string {
	if n, err := strconv.Atoi(text); err == nil && n > most {
		return strconv.Itoa(most)
	}
	return text
}

func (v *wish) set(name, text string) error {
	if v.text != nil {
		*v.text = text
		for _, word := range v.words {
			if text == word {
				return nil
			}
		}
		if v.words != nil {
			return fmt.Errorf("%s=%q, want one of %s", name, text, strings.Join(v.words, ", "))
		}
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < v.min || n > v.max {
		return fmt.Errorf("%s=%q, want a number from %d to %d", name, text, v.min, v.max)
	}
	*v.value = n
	return nil
}

// mtuOf is enum ibv_mtu for a number of bytes; 0 where there is none.
func mtuOf(bytes int) uint8 {
	for code, n := range [...]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096} {
		if n == bytes && n != 0 {
			return uint8(code)
		}
	}
	return 0
}

// apply fills in what o leaves open.
func (w *wishes) apply(o *Options) {
	for _, p := range []struct {
		to   *int
		wish int
	}{{&o.Depth, w.depth}, {&o.Buffer, w.buffer}, {&o.Strip, w.strip}, {&o.CacheBytes, w.cache}} {
		if *p.to == 0 {
			*p.to = p.wish
		}
	}
	o.Fresh = o.Fresh || w.fresh == 1
}

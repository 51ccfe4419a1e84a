package verbs

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A config has the settings of the user for the device and its queue pairs. They come from
// environment variables instead of Options, because they differ from host to host, and because
// users of TensorFlow have such variables already. A config is immutable once readConfig has
// returned. docs/verbs.md describes the variables.
type config struct {
	// These settings restrict the device, port and GID. The function choose applies them.
	device       string     // "": any; several, separated by commas, before ownPort
	ports        []portName // in device
	localRank    int        // number of this rank on its host; selects one of ports
	localRankVar string     // the name of the variable from which localRank was read
	port         int        // 0: any
	gid          int        // index; -1: the best
	family       string     // family of the GID: "ipv4", "ipv6", or "": any, ipv4 before ipv6
	roce         int        // version of the GID; 0: any, 2 before 1
	// Attributes of queue pairs; readConfig sets the defaults.
	pkey    int // index
	class   int // traffic class
	level   int // service level
	mtu     int // in bytes; 0: the port's
	timeout int // of a packet: 4.096 µs times two to the power of this
	retries int // of a packet
	rnr     int // of a packet that meets no receive
	// Defaults for Options.
	depth    int // 0: the default
	buffer   int // the same
	ring     int // the same
	cache    int // the same
	fresh    int // 1: Options.Fresh
	waiters  int // goroutines that wait for events
	problems []error
}

// A variable is one setting: its name here, TensorFlow's name for the same setting
// (contrib/verbs/README.md of TensorFlow 1.15; "" if there is none), and the values that it
// accepts.
type variable struct {
	name, tfName string
	value        *int
	text         *string
	min, max     int
	choices      []string // of text; nil: any
}

// variables lists all settings. For each setting it has the field that gets the value.
func (w *config) variables() []variable {
	return []variable{
		{name: "DEVICE", tfName: "RDMA_DEVICE", text: &w.device},
		{name: "PORT", tfName: "RDMA_DEVICE_PORT", value: &w.port, min: 0, max: 255},
		{name: "GID_INDEX", tfName: "RDMA_GID_INDEX", value: &w.gid, min: -1, max: 255},
		{name: "GID_FAMILY", text: &w.family, choices: []string{"ipv4", "ipv6"}},
		{name: "ROCE_VERSION", value: &w.roce, min: 0, max: 2},
		{name: "PKEY_INDEX", tfName: "RDMA_QP_PKEY_INDEX", value: &w.pkey, min: 0, max: math.MaxUint16},
		{name: "TRAFFIC_CLASS", tfName: "RDMA_TRAFFIC_CLASS", value: &w.class, min: 0, max: 255},
		{name: "SERVICE_LEVEL", tfName: "RDMA_QP_SL", value: &w.level, min: 0, max: 15},
		{name: "MTU", tfName: "RDMA_QP_MTU", value: &w.mtu, min: 0, max: 4096},
		{name: "TIMEOUT", tfName: "RDMA_QP_TIMEOUT", value: &w.timeout, min: 1, max: 22},
		{name: "RETRIES", tfName: "RDMA_QP_RETRY_COUNT", value: &w.retries, min: 0, max: 6},
		{name: "RNR_RETRIES", value: &w.rnr, min: 0, max: 6},
		{name: "DEPTH", tfName: "RDMA_QP_QUEUE_DEPTH", value: &w.depth, min: minDepth, max: maxDepth},
		{name: "BUFFER", value: &w.buffer, min: minBuffer, max: maxBuffer},
		{name: "RING", value: &w.ring, min: -1, max: maxRing},
		{name: "CACHE", value: &w.cache, min: -1, max: math.MaxInt},
		{name: "FRESH", value: &w.fresh, min: 0, max: 1},
		{name: "WAITERS", value: &w.waiters, min: 1, max: maxWaiters},
	}
}

// ourPrefix is the prefix of the names of this module's variables.
const ourPrefix = "TUTTI_VERBS_"

// readConfig reads the variables. This module's names precede TensorFlow's. An invalid value is an
// error that names the variable. It is never silently replaced by the default, with one exception:
// TensorFlow's retry count of 7 becomes 6, because some drivers retry forever with 7.
func readConfig(getenv func(string) string) (*config, error) {
	// The timeout is 4.096 µs * 2^14 = 67 ms, so six retries end within about half a second.
	w := &config{gid: -1, timeout: 14, retries: 6, rnr: 6, waiters: 1}
	// setBy maps this module's name of a setting to the variable that was set.
	setBy := make(map[string]string)
	for _, v := range w.variables() {
		// If both names are set, this module's name wins, because a script for TensorFlow may have
		// set the other name.
		name, text := ourPrefix+v.name, getenv(ourPrefix+v.name)
		if text == "" && v.tfName != "" {
			name, text = v.tfName, getenv(v.tfName)
			if name == "RDMA_QP_RETRY_COUNT" && text == "7" {
				text = "6"
			}
			if name == "RDMA_QP_QUEUE_DEPTH" && text != "" {
				text = atMost(text, maxDepth)
			}
		}
		if text != "" {
			setBy[v.name] = name
			w.addProblem(v.set(name, text))
		}
	}
	var err error
	w.ports, err = parsePorts(setBy["DEVICE"], w.device)
	w.addProblem(err)
	// The local rank is needed only to choose among several ports. So a bad value is an error only
	// if there are several ports.
	if len(w.ports) > 1 { // the number of the rank selects one
		w.localRank, w.localRankVar, err = localRankOf(getenv)
		w.addProblem(err)
	}
	if w.mtu != 0 && mtuOf(w.mtu) == 0 {
		w.addProblem(fmt.Errorf("%s=%d, want 256, 512, 1024, 2048 or 4096", setBy["MTU"], w.mtu))
	}
	return w, errors.Join(w.problems...)
}

// addProblem adds an error to the errors that readConfig returns, so that a user sees all errors at
// once.
func (w *config) addProblem(err error) {
	if err != nil {
		w.problems = append(w.problems, err)
	}
}

// atMost reduces a number to a maximum. It is used for the depth of a queue, for which TensorFlow
// accepts larger values and treats them as a request.
func atMost(text string, most int) string {
	if n, err := strconv.Atoi(text); err == nil && n > most {
		return strconv.Itoa(most)
	}
	return text
}

// set parses text, the value of the environment variable with the given name.
func (v *variable) set(name, text string) error {
	if v.text != nil {
		*v.text = text
		for _, word := range v.choices {
			if text == word {
				return nil
			}
		}
		if v.choices != nil {
			return fmt.Errorf("%s=%q, want one of %s", name, text, strings.Join(v.choices, ", "))
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

// mtuOf returns enum ibv_mtu for a number of bytes; 0 if there is none.
func mtuOf(bytes int) uint8 {
	for code, n := range [...]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096} {
		if n == bytes && n != 0 {
			return uint8(code)
		}
	}
	return 0
}

// apply sets the options that are zero in o.
func (w *config) apply(o *Options) {
	for _, p := range []struct {
		to    *int
		value int
	}{{&o.Depth, w.depth}, {&o.Buffer, w.buffer}, {&o.Ring, w.ring}, {&o.CacheBytes, w.cache}} {
		if *p.to == 0 {
			*p.to = p.value
		}
	}
	o.Fresh = o.Fresh || w.fresh == 1
}

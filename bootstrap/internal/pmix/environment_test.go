package pmix

import (
	"context"
	"net"
	"strings"
	"testing"
)

// lookupOf returns a Lookup of variables that are separated by blanks.
func lookupOf(env string) Lookup {
	return func(name string) (string, bool) {
		for word := range strings.FieldsSeq(env) {
			if v, ok := strings.CutPrefix(word, name+"="); ok {
				return v, true
			}
		}
		return "", false
	}
}

func TestTheNewestDialectOfTheServerCounts(t *testing.T) {
	for _, c := range []struct{ env, dialect, server string }{
		{"PMIX_SERVER_URI2=a.0;tcp4://127.0.0.1:1 PMIX_SERVER_URI21=a.0;tcp4://127.0.0.1:1", "v21", "127.0.0.1:1"},
		{"PMIX_SERVER_URI21=a.0;tcp4://127.0.0.1:1 PMIX_SERVER_URI3=a.0;tcp4://127.0.0.1:3", "v3", "127.0.0.1:3"},
		{"PMIX_SERVER_URI41=a.0;tcp4://127.0.0.1:4 PMIX_SERVER_URI4=a.0;tcp4://127.0.0.1:3", "v41", "127.0.0.1:4"},
		{"PMIX_SERVER_URI51=a@1.0;tcp6://[::1]:5 PMIX_SERVER_URI41=a.0;tcp4://127.0.0.1:4", "v51", "[::1]:5"},
		{"PMIX_SERVER_URI61=a.0;tcp6://fd00::2:6", "v61", "[fd00::2]:6"},
	} {
		e, err := readEnvironment(lookupOf("PMIX_NAMESPACE=a PMIX_RANK=3 PMIX_SECURITY_MODE=munge,native " + c.env))
		if err != nil || e.dialect.name != c.dialect || e.server != c.server || e.rank != 3 || e.security != "native" {
			t.Errorf("%s: got %+v, %v; want %s at %s", c.env, e, err, c.dialect, c.server)
		}
	}
}

func TestDialNamesTheVariableThatIsWrong(t *testing.T) {
	const uri = " PMIX_SERVER_URI41=a.0;tcp4://127.0.0.1:1 "
	for env, want := range map[string]string{
		"PMIX_RANK=0" + uri: "PMIX_NAMESPACE",
		"PMIX_RANK=0 PMIX_NAMESPACE=" + strings.Repeat("x", 256) + uri: "got 256 bytes",
		"PMIX_RANK=-1 PMIX_NAMESPACE=a" + uri:                          `PMIX_RANK: got "-1"`,
		"PMIX_RANK=65536 PMIX_NAMESPACE=a" + uri:                       "below 65536",
		"PMIX_RANK=0 PMIX_NAMESPACE=a":                                 "PMIX_SERVER_URI*",
		"PMIX_RANK=0 PMIX_NAMESPACE=a PMIX_SERVER_URI41=x":             "PMIX_SERVER_URI41",
		"PMIX_RANK=0 PMIX_NAMESPACE=a PMIX_SERVER_URI3=a;usock:/x":     `got "a;usock:/x"`,
		"PMIX_RANK=0 PMIX_NAMESPACE=a PMIX_SECURITY_MODE=munge" + uri:  `PMIX_SECURITY_MODE: got "munge"`,
	} {
		if _, err := Dial(t.Context(), lookupOf(env)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %s", env, err, want)
		}
	}
}

func TestPresentAndLocal(t *testing.T) {
	for _, c := range []struct {
		env            string
		present, local bool
	}{
		{"", false, false},
		{"PMIX_NAMESPACE=a PMIX_RANK=0", false, false},
		{"PMIX_NAMESPACE=a PMIX_SERVER_URI41=a.0;tcp4://127.0.0.1:1", false, true},
		{"PMIX_NAMESPACE=a PMIX_RANK=0 PMIX_SERVER_URI41=a.0;tcp4://127.0.0.1:1", true, true},
		{"PMIX_NAMESPACE=a PMIX_RANK=0 PMIX_SERVER_URI61=a.0;tcp6://[::1]:1", true, true},
		{"PMIX_NAMESPACE=a PMIX_RANK=0 PMIX_SERVER_URI41=a.0;tcp4://192.0.2.2:1", true, false},
		{"PMIX_NAMESPACE=a PMIX_RANK=0 PMIX_SERVER_URI41=a.0;tcp4://localhost:1", true, false},
		{"PMIX_NAMESPACE=a PMIX_RANK=0 PMIX_SERVER_URI41=broken", true, false},
	} {
		lookup := lookupOf(c.env)
		if p, l := Present(lookup), Local(lookup); p != c.present || l != c.local {
			t.Errorf("%s: got present %v and local %v, want %v and %v", c.env, p, l, c.present, c.local)
		}
	}
}

func TestDialNamesAServerThatHasGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, err = Dial(context.Background(), lookupOf("PMIX_NAMESPACE=a PMIX_RANK=0 PMIX_SERVER_URI41=a.0;tcp4://"+addr))
	if err == nil || !strings.HasPrefix(err.Error(), "PMIx server "+addr+" (v41): connect: ") {
		t.Errorf("got %v, want connect and %s", err, addr)
	}
}

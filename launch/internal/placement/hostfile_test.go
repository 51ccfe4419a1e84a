package placement

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestParseFile(t *testing.T) {
	for name, c := range map[string]struct {
		text      string
		byDefault Dialect
		want      []Host
		dialect   Dialect
	}{
		"slots":                     {"n1 slots=2 max_slots=4\nn2 slots=1", 0, []Host{{Name: "n1", Slots: 2, Max: 4}, {Name: "n2", Slots: 1}}, OpenMPI},
		"spaces around =":           {"n1 slots = 1\r\nn2\tslots= 3  max-slots =3", 0, []Host{{Name: "n1", Slots: 1}, {Name: "n2", Slots: 3, Max: 3}}, OpenMPI},
		"comments, empty lines":     {"# all\n\n  n1 slots=2 # half\n#n2 slots=2\n", 0, []Host{{Name: "n1", Slots: 2}}, OpenMPI},
		"repeated names add up":     {"n1 slots=2\nn2 slots=1\nn1 slots=3", 0, []Host{{Name: "n1", Slots: 5}, {Name: "n2", Slots: 1}}, OpenMPI},
		"no slots, once: cores":     {"n1\nn2 max_slots=3", 0, []Host{{Name: "n1"}, {Name: "n2", Max: 3}}, OpenMPI},
		"no slots, twice: two":      {"n1\nn2\nn1", 0, []Host{{Name: "n1", Slots: 2}, {Name: "n2"}}, OpenMPI},
		"no slots beside slots":     {"n1 slots=2\nn1", 0, []Host{{Name: "n1", Slots: 3}}, OpenMPI},
		"Hydra":                     {"n1:2\nn2\n", 0, []Host{{Name: "n1", Slots: 2}, {Name: "n2", Slots: 1}}, Hydra},
		"Hydra, repeated":           {"n1:2\nn1:1\nn1", 0, []Host{{Name: "n1", Slots: 4}}, Hydra},
		"Hydra by option":           {"n1\nn2\n", Hydra, []Host{{Name: "n1", Slots: 1}, {Name: "n2", Slots: 1}}, Hydra},
		"Open MPI despite option":   {"n1 slots=4\n", Hydra, []Host{{Name: "n1", Slots: 4}}, OpenMPI},
		"IPv6":                      {"fd00::1 slots=2\n[fd00::2] slots=2\n", 0, []Host{{Name: "fd00::1", Slots: 2}, {Name: "fd00::2", Slots: 2}}, OpenMPI},
		"IPv6, Hydra":               {"[fd00::1]:2", 0, []Host{{Name: "fd00::1", Slots: 2}}, Hydra},
		"a user, as ssh takes it":   {"me@n1 slots=2", 0, []Host{{Name: "me@n1", Slots: 2}}, OpenMPI},
		"mpi-operator's names":      {"pi-worker-0.pi.default.svc slots=1", 0, []Host{{Name: "pi-worker-0.pi.default.svc", Slots: 1}}, OpenMPI},
		"mpi-operator's, for Intel": {"pi-worker-0.pi.default.svc:1", 0, []Host{{Name: "pi-worker-0.pi.default.svc", Slots: 1}}, Hydra},
	} {
		got, dialect, err := ParseFile(strings.NewReader(c.text), "hosts", c.byDefault)
		if err != nil || !reflect.DeepEqual(got, c.want) || dialect != c.dialect {
			t.Errorf("%s: got %+v, %v, %v, want %+v, %v", name, got, dialect, err, c.want, c.dialect)
		}
	}
}

func TestParseFileNamesLineColumnAndRemedy(t *testing.T) {
	for text, want := range map[string]struct {
		line, column int
		text         string
	}{
		"n1 slots=two":                       {1, 10, `slots: got "two", want a number`},
		"n1\n n2 slots = -1":                 {2, 13, `slots: got "-1", want a number`},
		"n1 slots=0":                         {1, 10, "want a number from 1"},
		"n1 slots=99999999999":               {1, 10, "want a number from 1 to 65536"},
		"n1 slots":                           {1, 9, `got "", want '=' and a number after slots`},
		"n1 slots=":                          {1, 10, `slots: got ""`},
		"n1 slots 2":                         {1, 10, `got "2", want '='`},
		"n1 solts=2":                         {1, 4, `got "solts", want slots= or max_slots=`},
		"n1 port=22":                         {1, 4, "ssh's own configuration"},
		"n1:x":                               {1, 4, `slots: got "x"`},
		"n1:":                                {1, 4, `slots: got ""`},
		":2":                                 {1, 1, "empty host name"},
		"=2":                                 {1, 1, "host name"},
		"  -oProxyCommand=x":                 {1, 3, "not beginning with '-'"},
		"n1;reboot":                          {1, 1, "host name"},
		"[fd00::1":                           {1, 1, "want a ']'"},
		"[fd00::1]2":                         {1, 1, "want ':' and the slots"},
		"n1:2 slots=2":                       {1, 6, "one dialect"},
		"n1:2\nn2 slots=2":                   {2, 4, "line 1 has Hydra's form"},
		"n1 slots=2\n# x\nn2:2":              {3, 1, "slots=2 as on line 1"},
		strings.Repeat("n", 1<<13):           {1, 4096, "longer line"},
		"n1\n#" + strings.Repeat("n", 1<<13): {2, 4096, "longer line"},
	} {
		_, _, err := ParseFile(strings.NewReader(text), "hosts", OpenMPI)
		var s *SyntaxError
		if !errors.As(err, &s) || s.File != "hosts" || s.Line != want.line || s.Column != want.column || !strings.Contains(s.Text, want.text) {
			t.Errorf("%.40q: got %v, want line %d, column %d, %q", text, err, want.line, want.column, want.text)
		}
	}
	for text, want := range map[string]string{
		"# nothing\n":                                "hosts: got no host",
		"n1 slots=2 max_slots=1":                     "got 2 slots, want at most max_slots=1",
		strings.Repeat("n1\n", 3) + "n1 max_slots=2": "got 4 slots, want at most",
	} {
		if _, _, err := ParseFile(strings.NewReader(text), "hosts", OpenMPI); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestParseList(t *testing.T) {
	for list, want := range map[string][]Host{
		"n1:2,n2":             {{Name: "n1", Slots: 2}, {Name: "n2", Slots: 1}},
		"n1,n2,n1":            {{Name: "n1", Slots: 2}, {Name: "n2", Slots: 1}},
		"n1:*,n2:auto":        {{Name: "n1"}, {Name: "n2"}},
		"[fd00::1]:4,fd00::2": {{Name: "fd00::1", Slots: 4}, {Name: "fd00::2", Slots: 1}},
		"me@10.0.0.1:3":       {{Name: "me@10.0.0.1", Slots: 3}},
	} {
		if got, err := ParseList(list); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", list, got, err, want)
		}
	}
	for list, want := range map[string]string{
		"":           "empty host name",
		"n1,":        "empty host name",
		"n1:0":       `host "n1": slots: got "0"`,
		"n1:2:3x,n$": "host name",
		"n1:*,n1":    "want one entry",
		"-oX=1":      "not beginning with '-'",
		"n1:2 ,n2":   `got "2 "`,
		"n 1":        "host name",
	} {
		if got, err := ParseList(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v, want %q", list, got, err, want)
		}
	}
}

func TestAListSelectsHostsOfTheFile(t *testing.T) {
	file := []Host{{Name: "n1", Slots: 4, Max: 5}, {Name: "n2", Slots: 4}}
	got, err := Select(file, []Host{{Name: "n2", Slots: 1}, {Name: "n1"}})
	if want := []Host{{Name: "n2", Slots: 1}, {Name: "n1", Slots: 4, Max: 5}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := Select(file, []Host{{Name: "n3", Slots: 1}}); err == nil || !strings.Contains(err.Error(), "add it there") {
		t.Errorf("got %v, want an error that names the remedy", err)
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add("n1 slots = 2 max_slots=4\n# c\nn2\nn1")
	f.Add("n1:2\n[fd00::1]:3\nn2")
	f.Fuzz(func(t *testing.T, text string) {
		for _, byDefault := range []Dialect{OpenMPI, Hydra} {
			hosts, dialect, err := ParseFile(strings.NewReader(text), "f", byDefault)
			if err != nil {
				continue
			}
			for i, h := range hosts {
				if checkName(h.Name) != nil || h.Slots < 0 || dialect == Hydra && h.Slots == 0 || find(hosts, h.Name) != i {
					t.Errorf("%q: got %+v", text, hosts)
				}
			}
		}
	})
}

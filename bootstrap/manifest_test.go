package bootstrap

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The test reads the variables of the pods in deploy/kubernetes as a rank in pod 1 does.
func TestManifestsSetWhatRanksRead(t *testing.T) {
	for file, job := range map[string]string{
		"indexed-job.yaml": "digits",
		"jobset.yaml":      "digits-ranks-0",
	} {
		text, err := os.ReadFile(filepath.Join("..", "deploy", "kubernetes", file))
		if err != nil {
			t.Fatal(err)
		}
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte(testSecret), 0o600); err != nil {
			t.Fatal(err)
		}
		env := map[string]string{"JOB_COMPLETION_INDEX": "1"}
		for _, m := range regexp.MustCompile(`- \{name: ([A-Z_]+), value: "?([^"}]*)"?\}`).FindAllStringSubmatch(string(text), -1) {
			env[m[1]] = m[2]
		}
		// kubelet sets these variables from the pod's labels.
		for _, m := range regexp.MustCompile(`- name: ([A-Z_]+)\n *valueFrom:`).FindAllStringSubmatch(string(text), -1) {
			env[m[1]] = "1"
		}
		if _, ok := env["TUTTI_SECRET_FILE"]; !ok {
			t.Errorf("%s: got variables %v, want TUTTI_SECRET_FILE", file, env)
		}
		env["TUTTI_SECRET_FILE"] = secret

		unread := make(map[string]bool)
		for name := range env {
			unread[name] = true
		}
		f := finderOf()
		f.lookup = func(name string) (string, bool) {
			delete(unread, name)
			v, ok := env[name]
			return v, ok
		}
		f.hostname = func() (string, error) { return job + "-1", nil }
		f.hostsFile = func() (string, error) {
			return strings.ReplaceAll("10.244.1.5\tJOB-1.digits.default.svc.cluster.local\tJOB-1\n", "JOB", job), nil
		}
		j, err := f.find(Options{})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if root := job + "-0.digits.default.svc.cluster.local:29500"; j.Rank != 1 || j.Size != 4 || j.Root != root || string(j.Secret) != testSecret {
			t.Errorf("%s: got rank %d of %d, root %s, want rank 1 of 4, %s, and the secret", file, j.Rank, j.Size, j.Root, root)
		}
		if _, ok := env["TUTTI_INCARNATION"]; ok && j.Incarnation != 1 {
			t.Errorf("%s: got incarnation %d, want 1", file, j.Incarnation)
		}
		for name := range unread {
			t.Errorf("%s sets %s, which no rank reads", file, name)
		}
	}
}

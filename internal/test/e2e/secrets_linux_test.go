package e2e

import "testing"

func TestNoProcessShowsTheSecretOfAJob(t *testing.T) {
	const ranks = 3
	j := run(t, ranks, "tcp", instruction{Program: "leaks"})
	j.wantExit(0)
	if e := j.events("searched", 1)[0]; e.Text != "ranks 3, launcher true" {
		t.Errorf("searched %q, want 3 ranks and the launcher", e.Text)
	}
	for _, e := range j.events("found", 0) {
		t.Errorf("the secret, or the way to it, is %s", e.Text)
	}
}

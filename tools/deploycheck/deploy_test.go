// Package deploycheck checks the manifests of deploy/kubernetes without a cluster. Each document is
// decoded into its type, and any field that the type does not have is an error. JobSet's and
// MPIJob's documents are also validated against the schemas of their CRDs, which know more about
// values. The CRDs' rules in CEL are not evaluated.
//
// It is a module of its own, so that no program that uses tutti needs Kubernetes' modules.
package deploycheck

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	mpi "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/v2beta1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const folder = "../../deploy/kubernetes"

// A kind is what a document may be.
type kind struct {
	object func() any
	schema func() (*spec.Schema, error) // nil for Kubernetes' own kinds
}

// kinds maps an apiVersion and a kind to what they stand for.
var kinds = map[string]kind{
	"v1 Service":   {object: func() any { return new(core.Service) }},
	"v1 Secret":    {object: func() any { return new(core.Secret) }},
	"batch/v1 Job": {object: func() any { return new(batch.Job) }},
	"jobset.x-k8s.io/v1alpha2 JobSet": {
		func() any { return new(jobset.JobSet) },
		crd("sigs.k8s.io/jobset", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml", "v1alpha2"),
	},
	"kubeflow.org/v2beta1 MPIJob": {
		func() any { return new(mpi.MPIJob) },
		crd("github.com/kubeflow/mpi-operator", "manifests/base/kubeflow.org_mpijobs.yaml", "v2beta1"),
	},
}

// crd returns a function that reads the schema of one version of a CRD from a module.
func crd(module, file, version string) func() (*spec.Schema, error) {
	return sync.OnceValues(func() (*spec.Schema, error) {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			return nil, fmt.Errorf("go list -m %s: %w", module, err)
		}
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), file))
		if err != nil {
			return nil, err
		}
		var c struct {
			Spec struct {
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema *spec.Schema }
				}
			}
		}
		if err := yaml.Unmarshal(text, &c); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, v := range c.Spec.Versions {
			if v.Name == version {
				return v.Schema.OpenAPIV3Schema, nil
			}
		}
		return nil, fmt.Errorf("%s has no version %s", file, version)
	})
}

// decode returns the object that a document in JSON describes, or what is wrong with the document.
func decode(document []byte) (any, error) {
	var meta struct{ APIVersion, Kind string }
	if err := json.Unmarshal(document, &meta); err != nil {
		return nil, err
	}
	k, ok := kinds[meta.APIVersion+" "+meta.Kind]
	if !ok {
		return nil, fmt.Errorf("apiVersion and kind: got %q and %q, want one of %q", meta.APIVersion, meta.Kind, slices.Sorted(maps.Keys(kinds)))
	}
	object := k.object()
	strict, err := kjson.UnmarshalStrict(document, object)
	if err = errors.Join(err, errors.Join(strict...)); err != nil || k.schema == nil {
		return object, err
	}
	schema, err := k.schema()
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(document, &tree); err != nil {
		return nil, err
	}
	return object, errors.Join(validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(tree).Errors...)
}

// documents returns the documents of a file of the folder, in JSON.
func documents(t *testing.T, file string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		document, err := yaml.YAMLToJSONStrict(part)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, document)
	}
	return all
}

// files returns the names of all manifests.
func files(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(paths) < 4 {
		t.Fatalf("got manifests %q, %v, want at least 4", paths, err)
	}
	for i, p := range paths {
		paths[i] = filepath.Base(p)
	}
	return paths
}

// read returns the one document of a type in a file.
func read[T any](t *testing.T, file string) *T {
	t.Helper()
	for _, document := range documents(t, file) {
		if object, err := decode(document); err != nil {
			t.Fatalf("%s: %v", file, err)
		} else if object, ok := object.(*T); ok {
			return object
		}
	}
	t.Fatalf("%s: got no %T", file, *new(T))
	return nil
}

func TestManifestsAreValid(t *testing.T) {
	for _, file := range files(t) {
		for _, document := range documents(t, file) {
			if _, err := decode(document); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// The test misspells each field of each manifest in turn. Any key of a map is valid.
func TestEachMisspeltFieldFails(t *testing.T) {
	maps := []string{"labels", "selector", "stringData", "requests", "limits", "mpiReplicaSpecs"}
	for _, file := range files(t) {
		for _, document := range documents(t, file) {
			var tree any
			if err := json.Unmarshal(document, &tree); err != nil {
				t.Fatal(err)
			}
			fields := 0
			misspell(tree, maps, func(at string) {
				fields++
				text, err := json.Marshal(tree)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := decode(text); err == nil {
					t.Errorf("%s: %s is misspelt, and no error says so", file, at)
				}
			})
			if fields < 5 {
				t.Errorf("%s: got %d fields, want at least 5", file, fields)
			}
		}
	}
}

// misspell calls try with each field of a tree renamed, one after the other. It spares the keys of
// the fields that maps names.
func misspell(tree any, maps []string, try func(at string)) {
	switch v := tree.(type) {
	case []any:
		for _, e := range v {
			misspell(e, maps, try)
		}
	case map[string]any:
		for _, key := range sortedKeys(v) {
			value := v[key]
			delete(v, key)
			v[key+"s"] = value
			try(key)
			delete(v, key+"s")
			v[key] = value
			if inner, ok := value.(map[string]any); ok && slices.Contains(maps, key) {
				for _, name := range sortedKeys(inner) {
					misspell(inner[name], maps, try)
				}
				continue
			}
			misspell(value, maps, try)
		}
	}
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// The CRDs say more than the types do.
func TestWrongValuesFail(t *testing.T) {
	for _, c := range []struct{ file, old, new, want string }{
		{"indexed-job.yaml", `"completions":4`, `"completions":"four"`, "completions"},
		{"jobset.yaml", `"replicas":1`, `"replicas":"one"`, "replicas"},
		{"jobset.yaml", `"maxRestarts":3`, `"maxRestarts":3,"restartStrategy":"Never"`, "restartStrategy"},
		{"jobset.yaml", `"name":"ranks",`, ``, "name"},
		{"mpijob.yaml", `"mpiImplementation":"OpenMPI"`, `"mpiImplementation":"OpenMP"`, "mpiImplementation"},
		{"mpijob.yaml", `v2beta1`, `v1`, "apiVersion"},
	} {
		found := false
		for _, document := range documents(t, c.file) {
			text := strings.Replace(string(document), c.old, c.new, 1)
			if text == string(document) {
				continue
			}
			found = true
			if _, err := decode([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %s: got %v, want an error about %s", c.file, c.new, err, c.want)
			}
		}
		if !found {
			t.Errorf("%s: got no %s", c.file, c.old)
		}
	}
}

// env returns the variables of a container that have a value.
func env(c core.Container) map[string]string {
	all := make(map[string]string)
	for _, v := range c.Env {
		all[v.Name] = v.Value
	}
	return all
}

// checkSecret checks that a pod's user, and nobody else, can read the secret at file.
func checkSecret(t *testing.T, name string, pod core.PodSpec, file string) {
	t.Helper()
	secret := read[core.Secret](t, "secret.yaml")
	mount, volume := core.VolumeMount{}, core.Volume{}
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.MountPath == path.Dir(file) {
			mount = m
		}
	}
	for _, v := range pod.Volumes {
		if v.Name == mount.Name && v.Secret != nil {
			volume = v
		}
	}
	if volume.Secret == nil || volume.Secret.SecretName != secret.Name || secret.StringData[path.Base(file)] == "" {
		t.Fatalf("%s: got TUTTI_SECRET_FILE=%q, want the file of a key of secret %s", name, file, secret.Name)
	}
	if m := volume.Secret.DefaultMode; m == nil || *m != 0o400 {
		t.Errorf("%s: the secret's volume: got no defaultMode 0400", name)
	}
	user := pod.SecurityContext
	if user == nil || user.RunAsUser == nil || *user.RunAsUser == 0 || user.FSGroup == nil || !reflect.DeepEqual(user.FSGroup, user.RunAsGroup) ||
		user.RunAsNonRoot == nil || !*user.RunAsNonRoot {
		t.Errorf("%s: got security context %+v, want a user other than root, with its group as fsGroup", name, user)
	}
}

// checkJob checks that an Indexed Job has as many pods as its ranks expect.
func checkJob(t *testing.T, name string, job batch.JobSpec) {
	t.Helper()
	if job.CompletionMode == nil || *job.CompletionMode != batch.IndexedCompletion || job.Completions == nil || job.Parallelism == nil || *job.Completions != *job.Parallelism {
		t.Fatalf("%s: got %+v, want an Indexed Job with parallelism equal to completions", name, job)
	}
	vars := env(job.Template.Spec.Containers[0])
	if got, want := vars["WORLD_SIZE"], strconv.Itoa(int(*job.Completions)); got != want {
		t.Errorf("%s: WORLD_SIZE: got %q, want %s", name, got, want)
	}
	checkSecret(t, name, job.Template.Spec, vars["TUTTI_SECRET_FILE"])
}

func TestPodsMatchTheirRanks(t *testing.T) {
	job := read[batch.Job](t, "indexed-job.yaml")
	checkJob(t, "indexed-job.yaml", job.Spec)
	service := read[core.Service](t, "indexed-job.yaml")
	selector := map[string]string{batch.JobNameLabel: job.Name}
	if service.Name != job.Spec.Template.Spec.Subdomain || service.Spec.ClusterIP != core.ClusterIPNone ||
		!service.Spec.PublishNotReadyAddresses || !reflect.DeepEqual(service.Spec.Selector, selector) {
		t.Errorf("got Service %q, %+v, want a headless one %q for %v, with pods that are not ready",
			service.Name, service.Spec, job.Spec.Template.Spec.Subdomain, selector)
	}
	set := read[jobset.JobSet](t, "jobset.yaml")
	if jobs := set.Spec.ReplicatedJobs; len(jobs) != 1 || jobs[0].Replicas != 1 {
		t.Fatalf("jobset.yaml: got %+v, want one Job", jobs)
	}
	checkJob(t, "jobset.yaml", set.Spec.ReplicatedJobs[0].Template.Spec)
}

func TestMPIJobPassesTheSecret(t *testing.T) {
	job := read[mpi.MPIJob](t, "mpijob.yaml")
	launcher, workers := job.Spec.MPIReplicaSpecs[mpi.MPIReplicaTypeLauncher], job.Spec.MPIReplicaSpecs[mpi.MPIReplicaTypeWorker]
	start := launcher.Template.Spec.Containers[0]
	vars := env(start)
	if job.Spec.LauncherCreationPolicy != mpi.LauncherCreationPolicyWaitForWorkersReady {
		t.Errorf("launcherCreationPolicy: got %q, want %q", job.Spec.LauncherCreationPolicy, mpi.LauncherCreationPolicyWaitForWorkersReady)
	}
	passed := ""
	for i, arg := range start.Command {
		switch arg {
		case "-n":
			if got, want := start.Command[i+1], strconv.Itoa(int(*workers.Replicas**job.Spec.SlotsPerWorker)); got != want {
				t.Errorf("-n: got %s, want %s, the slots of the workers", got, want)
			}
		case "-x":
			passed += " " + start.Command[i+1]
			if vars[start.Command[i+1]] == "" {
				t.Errorf("-x %s: the launcher has no such variable", start.Command[i+1])
			}
		}
	}
	if !strings.Contains(passed, "TUTTI_SECRET_FILE") {
		t.Errorf("got -x%s, want TUTTI_SECRET_FILE", passed)
	}
	checkSecret(t, "mpijob.yaml", workers.Template.Spec, vars["TUTTI_SECRET_FILE"])
}

// The test runs the commands of the Dockerfile's stage build in a copy of the tree, and looks for
// the files that its other stages copy. It does not run docker.
func TestDockerfileBuildsStaticProgram(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(folder, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	run := func(dir, command string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", command)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	run("../..", "git ls-files -z | xargs -0 cp --parents -t '"+tree+"'")
	stage, program := "", ""
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 4 && f[0] == "FROM":
			stage = f[3]
		case len(f) > 1 && f[0] == "RUN" && stage == "build":
			run(tree, strings.Join(f[1:], " "))
		case len(f) == 4 && f[0] == "COPY" && f[1] == "--from=build":
			program = filepath.Join(tree, strings.TrimPrefix(f[2], "/src/"))
		case len(f) > 2 && f[0] == "COPY":
			for _, name := range f[1 : len(f)-1] {
				if _, err := os.Stat(filepath.Join(tree, name)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	binary, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s: got a dynamic program, want a static one: a scratch image has no libraries", program)
		}
	}
}

// A secret that a user has forgotten to replace must not work.
func TestSecretOfTheManifestIsRefused(t *testing.T) {
	for key, value := range read[core.Secret](t, "secret.yaml").StringData {
		if len(value) >= 16 {
			t.Errorf("%s: got %d bytes, want less than the 16 that a secret needs", key, len(value))
		}
	}
}

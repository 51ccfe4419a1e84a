//go:build unix

package atomicfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/internal/atomicfile"
)

// What is no file stays what it is. Who may not make a device sees the pipe alone.
func TestWhatIsNoFileIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	pipe, null := filepath.Join(dir, "pipe"), filepath.Join(dir, "null")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	list := []string{pipe}
	if err := syscall.Mknod(null, syscall.S_IFCHR|0o600, 1<<8|3); err == nil {
		list = append(list, null)
	}
	for _, file := range list {
		before, err := os.Lstat(file)
		if err != nil {
			t.Fatal(err)
		}
		check, wrote := atomicfile.Check(file), atomicfile.Write(file, []byte("text"))
		if (check == nil) != (wrote == nil) || file == pipe && wrote == nil {
			t.Errorf("%s: Check says %v, and Write %v", file, check, wrote)
		}
		if after, err := os.Lstat(file); err != nil || after.Mode() != before.Mode() || !os.SameFile(before, after) {
			t.Errorf("%s: it was %v, and now is %v, %v", file, before.Mode(), after, err)
		}
	}
	if got := names(t, dir); len(got) != len(list) {
		t.Errorf("the folder has %q", got)
	}
}

func TestALinkStaysAndWhatItLeadsToIsWritten(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "sub/target", "far": "link", "none": "sub/new", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "target"), []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"far": "sub/target", "link": "sub/target", "none": "sub/new"} {
		link := filepath.Join(dir, name)
		if err := atomicfile.Check(link); err != nil {
			t.Errorf("Check says %v", err)
		}
		if err := atomicfile.Write(link, []byte(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s is no link any more: %v, %v", name, info, err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, to)); err != nil || string(got) != name {
			t.Errorf("%s: what it leads to has %q, %v", name, got, err)
		}
	}
	if got := strings.Join(names(t, filepath.Join(dir, "sub")), " "); got != "new target" {
		t.Errorf("beside what the links lead to there is %q", got)
	}
	loop := filepath.Join(dir, "loop")
	if check, wrote := atomicfile.Check(loop), atomicfile.Write(loop, nil); check == nil || wrote == nil || !strings.Contains(wrote.Error(), loop) {
		t.Errorf("a loop of links: %v, %v", check, wrote)
	}
}

// A folder may be a link itself: what `..` means there is what the system says.
func TestALinkInALinkedFolderLeadsWhereTheSystemSays(t *testing.T) {
	dir := t.TempDir()
	for _, folder := range []string{"here", "shared", "data/j/cfg", "data/j/shared"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ link, to string }{
		{"here/cfg", "../data/j/cfg"},
		{"data/j/cfg/s.json", "../shared/s.json"},
		{"data/j/cfg/far", "near"}, {"data/j/cfg/near", "../shared/far.json"},
		{"here/over", "cfg/../shared/over.json"},
	} {
		if err := os.Symlink(c.to, filepath.Join(dir, c.link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ file, want string }{
		{"here/cfg/s.json", "data/j/shared/s.json"},
		{"here/cfg/far", "data/j/shared/far.json"},
		{"here/over", "data/j/shared/over.json"},
	} {
		if err := atomicfile.Write(filepath.Join(dir, c.file), []byte(c.file)); err != nil {
			t.Errorf("%s: %v", c.file, err)
		}
		for _, at := range []string{c.file, c.want} {
			if got, err := os.ReadFile(filepath.Join(dir, at)); err != nil || string(got) != c.file {
				t.Errorf("%s: at %s there is %q, %v", c.file, at, got, err)
			}
		}
	}
	t.Chdir(filepath.Join(dir, "here"))
	if err := os.Symlink("new.json", "plain"); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write("plain", nil); err != nil {
		t.Error(err)
	}
	if got := strings.Join(names(t, "."), " "); got != "cfg new.json over plain" {
		t.Errorf("beside a link in this folder there are %q", got)
	}
}

func TestAFileKeepsItsPermissionsAndANewOneHasTheUmasks(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	file := filepath.Join(t.TempDir(), "f")
	for _, mode := range []fs.FileMode{0o640, 0o600, 0o666, 0o444} {
		if mode != 0o640 {
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := atomicfile.Write(file, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != mode {
			t.Errorf("it has %v, %v, want %v", info.Mode(), err, mode)
		}
	}
}

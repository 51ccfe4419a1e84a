package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A startError says why a program cannot be started. Its code is the exit code that a shell would
// return.
type startError struct {
	code int
	text string
}

// Error implements error.
func (e *startError) Error() string { return e.text }

// findProgram resolves a program as execvp does, with the rank's PATH and working directory. The
// result is valid for a process in dir. The launcher resolves all programs before any rank starts,
// so that the user gets one error, with the exit code of a shell, and not one error from each rank.
func findProgram(name, dir, path string) (string, error) {
	// A name with a slash is a path, so PATH does not apply.
	if strings.ContainsRune(name, filepath.Separator) {
		return name, executable(name, dir, name)
	}
	var denied error
	for _, d := range filepath.SplitList(path) {
		candidate := filepath.Join(orDot(d), name)
		if !filepath.IsAbs(candidate) {
			candidate = "." + string(filepath.Separator) + candidate
		}
		err := executable(name, dir, candidate)
		if err == nil {
			return candidate, nil
		}
		var se *startError
		if errors.As(err, &se) && se.code == exitNotRunning && denied == nil {
			denied = err // like a shell, continue: a later match may be executable
		}
	}
	if denied != nil {
		return "", denied
	}
	// A frequent mistake is a program in the working directory, if that directory is not in PATH.
	hint := ""
	local := "." + string(filepath.Separator) + name
	if executable(name, dir, local) == nil {
		hint = "; did you mean " + local + "?"
	}
	return "", &startError{exitNotFound, fmt.Sprintf("%s: no such program in PATH%s", name, hint)}
}

// orDot returns an entry of PATH, or "." for an empty entry.
func orDot(dir string) string {
	if dir == "" {
		return "." // an empty entry of PATH
	}
	return dir
}

// executable returns an error if path, relative to dir, cannot be executed. It checks only the mode
// of the file.
func executable(name, dir, path string) error {
	if dir != "" && !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return &startError{exitNotFound, name + ": no such file"}
	case err != nil:
		return &startError{exitNotRunning, fmt.Sprintf("%s: %v", name, errors.Unwrap(err))}
	case info.IsDir():
		return &startError{exitNotRunning, name + ": is a directory"}
	case info.Mode()&0o111 == 0:
		return &startError{exitNotRunning, name + ": not executable; make it so with chmod +x"}
	}
	return nil
}

// startFailure explains why the system has not started a program that findProgram has accepted. The
// system's own texts are often misleading: "no such file" may mean that the interpreter or the
// working directory is missing.
func startFailure(name, dir string, err error) *startError {
	code, why := exitNotRunning, err.Error()
	var se *startError
	if errors.As(err, &se) {
		return &startError{se.code, name + ": " + se.text}
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		why = pe.Err.Error()
	}
	switch {
	case dir != "" && !isDir(dir):
		why = "the working directory " + dir + " does not exist"
	case errors.Is(err, fs.ErrNotExist):
		code, why = exitNotFound, "no such file, or its interpreter is missing"
	case errors.Is(err, syscall.ENOEXEC):
		why = "not a program for this machine, or a script without #! in its first line"
	case errors.Is(err, syscall.EAGAIN):
		why += " (too many processes? see ulimit -u)"
	case errors.Is(err, syscall.EMFILE):
		why += " (raise ulimit -n: a rank needs 4 descriptors of the launcher, and 2 more with files of output)"
	}
	return &startError{code, name + ": " + why}
}

// isDir reports whether path is a directory.
func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

package bootstrap

import (
	"bytes"
	"encoding/hex"
	"io"
	"os"

	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/vars"
)

// A secret in a file has at least jobca.MinSecret and at most maxSecret bytes.
const maxSecret = 4 << 10

// secret reads TUTTI_SECRET_FILE, or else TUTTI_SECRET. The bytes of the file, without surrounding
// white space, are the secret. The variable is in hex, so that it can hold any bytes. If neither is
// set, secret returns nil.
func (f *finder) secret(rank int) ([]byte, error) {
	if path, ok := f.get(vars.SecretFile); ok {
		return secretFile(rank, path)
	}
	text, ok := f.get(vars.Secret)
	if !ok {
		return nil, nil
	}
	// Errors never show the value, because they are printed and logged.
	const remedy = "set it to the same 32 or more hex digits for all ranks, such as the output of: openssl rand -hex 16"
	b, err := hex.DecodeString(text)
	if err != nil {
		return nil, refuse(rank, "%s is not hex: %s", vars.Secret, remedy)
	}
	if len(b) < jobca.MinSecret || len(b) > maxSecret {
		return nil, refuse(rank, "%s has %d bytes, not %d to %d: %s", vars.Secret, len(b), jobca.MinSecret, maxSecret, remedy)
	}
	return b, nil
}

// secretFile reads a secret from a file that only this user may read. It refuses a file that other
// users can read, and does not only warn, because they may know the secret already. It refuses
// devices and FIFOs, because reading them may block for ever.
func secretFile(rank int, path string) ([]byte, error) {
	const remedy = "write one with: (umask 077; openssl rand -hex 16 > FILE)"
	// The check comes before the open, because opening a FIFO waits for its writer.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, badVariable(rank, vars.SecretFile, path, "is not a regular file", remedy)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, badVariable(rank, vars.SecretFile, path, "cannot be read ("+err.Error()+")", remedy)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, badVariable(rank, vars.SecretFile, path, "cannot be read ("+err.Error()+")", remedy)
	}
	if readableByOthers(info) {
		return nil, badVariable(rank, vars.SecretFile, path, "can be read by others (mode "+info.Mode().Perm().String()+")",
			"chmod 600 it (a Kubernetes secret's volume: defaultMode: 0400, and the pod's fsGroup if it does not run as root)")
	}
	b, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err != nil {
		return nil, badVariable(rank, vars.SecretFile, path, "cannot be read ("+err.Error()+")", remedy)
	}
	if b = bytes.TrimSpace(b); len(b) < jobca.MinSecret || len(b) > maxSecret {
		return nil, badVariable(rank, vars.SecretFile, path, "holds no secret of "+itoa(jobca.MinSecret)+" to "+itoa(maxSecret)+" bytes", remedy)
	}
	return b, nil
}

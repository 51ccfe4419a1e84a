package bootstrap

import (
	"encoding/hex"
	"errors"

	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/secretfile"
	"github.com/tutti-go/tutti/internal/vars"
)

// secret reads TUTTI_SECRET_FILE, or else TUTTI_SECRET. The bytes of the file, without surrounding
// white space, are the secret. The variable is in hex, so that it can hold any bytes. If neither is
// set, secret returns nil.
func (f *finder) secret(rank int) ([]byte, error) {
	if path, ok := f.get(vars.SecretFile); ok {
		b, err := secretfile.Read(path)
		var refused *secretfile.FileError
		if errors.As(err, &refused) {
			return nil, badVariable(rank, vars.SecretFile, path, refused.Why, refused.Remedy)
		}
		return b, err
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
	if len(b) < jobca.MinSecret || len(b) > secretfile.Max {
		return nil, refuse(rank, "%s has %d bytes, not %d to %d: %s", vars.Secret, len(b), jobca.MinSecret, secretfile.Max, remedy)
	}
	return b, nil
}

package agent

import (
	"fmt"
	"io"
	"net"
	"time"
)

// Port is the default port of an agent. IANA has assigned it to no service. It is outside the range
// of ports that systems assign to outgoing connections, outside the node ports of Kubernetes (30000
// to 32767), and outside the range from which ranks under plain srun derive a port (15000 to
// 29999).
const Port = "14888"

// proto is the ALPN name. It must change with the protocol.
const proto = "tutti-agent/1"

// keepAlive makes the system end a connection after 15 s in which the other host has not answered.
// It has no effect while written bytes wait for their acknowledgement; see cutTimeout. A launcher
// that is stopped keeps its ranks, because its host still answers. A launcher whose host is cut off
// loses them. Any other silence is detected by the processes at both ends.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5}

// maxText is the maximum length of a verb and of a refusal.
const maxText = 255

// writeText writes the length of a text and then the text. It truncates the text to maxText bytes.
func writeText(w io.Writer, text string) error {
	text = text[:min(len(text), maxText)]
	_, err := w.Write(append([]byte{byte(len(text))}, text...))
	return err
}

// readText reads what writeText has written. It does not read ahead.
func readText(r io.Reader) (string, error) {
	var length [1]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return "", err
	}
	text := make([]byte, length[0])
	if n, err := io.ReadFull(r, text); err != nil {
		return "", fmt.Errorf("message: got %d bytes, want %d: %w", n, len(text), io.ErrUnexpectedEOF)
	}
	return string(text), nil
}

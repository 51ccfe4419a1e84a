package comm

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/internal/vars"
)

// processManager speaks PMI-1 to the one rank of a job, and returns its lines up to finalize.
func processManager(conn net.Conn) (lines []string) {
	value := ""
	for in := bufio.NewScanner(conn); in.Scan(); {
		lines = append(lines, in.Text())
		answer := ""
		switch command, rest, _ := strings.Cut(in.Text(), " "); command {
		case "cmd=initack":
			answer = "cmd=initack\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0"
		case "cmd=init":
			answer = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"
		case "cmd=get_my_kvsname":
			answer = "cmd=my_kvsname kvsname=k"
		case "cmd=put":
			_, value, _ = strings.Cut(rest, "value=")
			answer = "cmd=put_result rc=0"
		case "cmd=barrier_in":
			answer = "cmd=barrier_out"
		case "cmd=get":
			answer = "cmd=get_result rc=0 value=" + value
			if value == "" { // the layout
				answer = "cmd=get_result rc=-1"
			}
		case "cmd=finalize":
			answer = "cmd=finalize_ack"
		}
		conn.Write([]byte(answer + "\n"))
	}
	return lines
}

// A launcher ends the other ranks of a job if a rank ends before it has sent finalize. So a rank
// whose Init has failed must not send finalize: otherwise its launcher would not end the other
// ranks, which wait for this rank in Init.
func TestOnlyAnInitThatSucceedsSendsFinalize(t *testing.T) {
	for transport, last := range map[string]string{"": "cmd=finalize", "none": "cmd=get kvsname=k key=tutti-rank-0"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conns, served := make(chan net.Conn, 1), make(chan []string, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				close(conns)
				return
			}
			conns <- conn
			served <- processManager(conn)
		}()
		env := map[string]string{"PMI_PORT": l.Addr().String(), "PMI_ID": "0", vars.Transport: transport}
		job, err := bootstrap.Find(bootstrap.Options{Lookup: func(name string) (string, bool) {
			v, ok := env[name]
			return v, ok
		}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := newOptions(nil).join(t.Context(), job)
		if (err == nil) != (transport == "") {
			t.Errorf("transport %q: got %v", transport, err)
		}
		if err == nil {
			c.Close(t.Context())
		}
		l.Close()
		conn := <-conns
		if conn == nil {
			t.Fatalf("transport %q: Init has not connected: %v", transport, err)
		}
		conn.(*net.TCPConn).CloseRead() // every request has been read and answered
		if lines := <-served; len(lines) == 0 || lines[len(lines)-1] != last {
			t.Errorf("transport %q: got the lines %q, want %q as the last", transport, lines, last)
		}
		conn.Close()
	}
}

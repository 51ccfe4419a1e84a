module example.com/unixsock

go 1.26.0

require github.com/tutti-go/tutti v0.0.0

require (
	golang.org/x/sys v0.49.0 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)

replace github.com/tutti-go/tutti => ../../..

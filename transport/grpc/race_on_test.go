//go:build race

package grpc

const raceDetector = true

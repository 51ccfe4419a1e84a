//go:build unix

package e2e

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// A scene is what a rank does once it has joined. It runs on the goroutine that
// called Init, and its error is the program's.
type scene func(ctx context.Context, a *actor, c *comm.Comm) error

func scenes() map[string]scene {
	return map[string]scene{
		"disagree":   disagree,
		"sum":        sumForever,
		"absent":     stayAway,
		"stop":       sumUntilStopped,
		"suspend":    passUntilTold,
		"panic":      panicOnOne,
		"quit":       quitOnOne,
		"close":      closeOneFirst,
		"misuse":     misuse,
		"cycle":      sendInACycle,
		"host":       workUnharmed,
		"busy":       stayBusy,
		"places":     tellPlaces,
		"train":      train,
		"coordinate": coordinate,
		"fatal":      leaveAtOnce,
		"pace":       keepPace,
	}
}

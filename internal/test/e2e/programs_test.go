//go:build unix

package e2e

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// A program is the function that a rank runs once it has joined. It runs on the goroutine that
// called Init. Its error is the error of the rank's process.
type program func(ctx context.Context, a *rankProcess, c *comm.Comm) error

func programs() map[string]program {
	return map[string]program{
		"disagree":    runMismatch,
		"sum":         sumForever,
		"absentee":    sumForever,
		"absent":      skipCall,
		"stop":        sumUntilStopped,
		"suspend":     passUntilGate,
		"panic":       panicOnOne,
		"quit":        quitOnOne,
		"close":       closeOneFirst,
		"misuse":      misuse,
		"cycle":       sendInACycle,
		"host":        passTokens,
		"busy":        stayBusy,
		"places":      reportLayout,
		"train":       train,
		"coordinate":  runCoordinator,
		"fatal":       exitOnError,
		"pace":        measureLatency,
		"leaks":       findSecrets,
		"marked":      sumMarked,
		"push":        pushThroughLosses,
		"survive":     sumAndSurvive,
		"rejoin":      sumAndRejoin,
		"rejoinoften": rejoinOften,
		"misrejoin":   rejoinWithoutRecord,
	}
}

package client

import (
	"context"
	"log/slog"
	"strings"
)

// losses logs lost streams so that an outage is one warning however long it
// lasts: each new reason is a warning, the attempts that fail for the reason
// before are for debugging, and the return is told once. One goroutine uses it.
type losses struct {
	log *slog.Logger
	// reason is that of the last loss, empty while there is a stream.
	reason string
	failed int
}

// lost tells of a stream that ended or could not be opened.
func (l *losses) lost(ctx context.Context, err error) {
	level, reason := slog.LevelWarn, lossReason(err)
	if reason == l.reason {
		level = slog.LevelDebug
	}
	l.reason = reason
	l.failed++
	l.log.Log(ctx, level, "no stream to the service, trying again", "error", err, "failed", l.failed)
}

// back tells that there is a stream, if there was none.
func (l *losses) back(ctx context.Context) {
	if l.reason != "" {
		l.log.InfoContext(ctx, "stream to the service stands again", "failed", l.failed)
	}
	l.reason, l.failed = "", 0
}

// handshakeFailed is how gRPC tells of a connection whose TLS did not come about.
const handshakeFailed = "authentication handshake failed"

// lossReason is what two losses of one reason have in common. The texts of
// broken connections differ in ports and times.
func lossReason(err error) string {
	e, ok := FromError(err)
	if !ok {
		return err.Error()
	}
	reason := e.Code.String() + " " + e.Reason
	if strings.Contains(e.Message, handshakeFailed) {
		// An address that nobody listens on mends itself, a certificate that has
		// expired does not, and both are UNAVAILABLE.
		reason += " " + handshakeFailed
	}
	return reason
}

package agent

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// QuietKlog sends what client-go logs by itself, in this whole process, to
// logger's DEBUG level: the agent tells what matters of it in its own words.
func QuietKlog(logger *slog.Logger) {
	klog.SetSlogLogger(slog.New(&demoted{logger.Handler()}))
}

// demoted is a handler that takes every record for a debugging aid.
type demoted struct{ slog.Handler }

// Enabled implements [slog.Handler].
func (d *demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements [slog.Handler].
func (d *demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	// klog writes its errors without asking.
	if !d.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (d *demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &demoted{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (d *demoted) WithGroup(name string) slog.Handler { return &demoted{d.Handler.WithGroup(name)} }

package agent

import (
	"log/slog"
	"strings"
	"sync"
)

// What is done with an object beyond the contract's bounds.
const (
	doneCut     = "cut"
	doneLeftOut = "left_out"
)

// reporter counts what the mirrors tell, and warns once of each kind of it: such
// objects come in thousands, and again with each list.
type reporter struct {
	log     *slog.Logger
	metrics *metrics

	mu     sync.Mutex // guards warned
	warned map[string]bool
}

var _ teller = (*reporter)(nil)

func newReporter(log *slog.Logger, m *metrics) *reporter {
	return &reporter{log: log, metrics: m, warned: map[string]bool{}}
}

func (r *reporter) relisted(resource string) { r.metrics.relists.WithLabelValues(resource).Inc() }

func (r *reporter) unfit(resource, key string, fields []string, leftOut bool) {
	done, text := doneCut, "an object exceeds what the service takes and was cut, which may delay its eviction; others like it are only counted"
	if leftOut {
		done, text = doneLeftOut, "an object exceeds what the service takes and was left out: it is not evicted; others like it are only counted"
	}
	r.metrics.unfit.WithLabelValues(resource, done).Inc()
	what := resource + done + strings.Join(fields, ",")
	r.mu.Lock()
	first := !r.warned[what]
	r.warned[what] = true
	r.mu.Unlock()
	if first {
		r.log.Warn(text, "resource", resource, "object", key, "fields", fields)
	}
}

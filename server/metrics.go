package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/reprieve-dev/reprieve/engine"
)

// metrics are what the service counts as things happen. It implements
// engine.Observer. Labels are clusters and fixed sets, never pods or nodes.
type metrics struct {
	lateness, delivery, feedLag          *prometheus.HistogramVec
	orders, results, closed, events      *prometheus.CounterVec
	nodeOrders                           *prometheus.CounterVec
	commitTime, commitSize               prometheus.Histogram
	commitErrors, unknownTokens, damaged prometheus.Counter
	clockSteps                           prometheus.Counter
	clockDrift                           prometheus.Gauge
	denied, limited                      *prometheus.CounterVec
	auditLines                           *prometheus.CounterVec
	auditErrors, auditSuppressed         prometheus.Counter
	reloads, reloadErrors                *prometheus.CounterVec
	deletions                            prometheus.Counter
	deletionTime                         prometheus.Histogram
}

// Buckets of times from a millisecond to an hour, of commits, and of batch sizes.
var (
	longBuckets   = []float64{.001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	commitBuckets = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 5}
	sizeBuckets   = []float64{1, 2, 5, 10, 50, 100, 500, 1000, 2500, 5000}
)

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	times := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: longBuckets}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		lateness:        times("reprieve_eviction_lateness_seconds", "From an eviction's due instant until its order left.", "cluster"),
		delivery:        times("reprieve_delivery_duration_seconds", "From an order's delivery until its outcome.", "cluster", "outcome"),
		feedLag:         times("reprieve_feed_lag_seconds", "From a feed message's arrival until what follows from it was on disk.", "cluster"),
		orders:          counters("reprieve_orders_total", "Orders that left.", "cluster"),
		results:         counters("reprieve_results_total", "Orders that ended, by outcome.", "cluster", "outcome"),
		nodeOrders:      counters("reprieve_node_orders_total", "Orders for nodes that ended, by outcome.", "cluster", "outcome"),
		closed:          counters("reprieve_evictions_closed_total", "Evictions that went to history, by reason.", "cluster", "reason"),
		events:          counters("reprieve_feed_events_total", "Node and pod events taken from feeds.", "cluster"),
		denied:          counters("reprieve_permission_denied_total", "Calls refused for want of a role.", "method"),
		limited:         counters("reprieve_limited_total", "Calls refused because one caller asked for too much, by limit.", "limit"),
		auditLines:      counters("reprieve_audit_lines_total", "Lines of the audit log.", "kind"),
		auditErrors:     counter("reprieve_audit_errors_total", "Lines that the audit file did not take; the service's log has them."),
		auditSuppressed: counter("reprieve_audit_suppressed_total", "Refused calls without a line of their own in the audit log, which has too many of them."),
		reloads:         counters("reprieve_reloads_total", "Changed files of certificates or tokens that were put in force.", "file"),
		reloadErrors:    counters("reprieve_reload_errors_total", "Looks at a file of certificates or tokens that found it broken; what it held before is in force.", "file"),
		commitTime:      histogram("reprieve_commit_duration_seconds", "Time of one transaction of the store.", commitBuckets),
		commitSize:      histogram("reprieve_commit_changes", "Changes in one transaction of the store.", sizeBuckets),
		commitErrors:    counter("reprieve_commit_errors_total", "Transactions that failed; each makes the service open its store again."),
		unknownTokens:   counter("reprieve_unknown_tokens_total", "Answers with a token that is not live."),
		damaged:         counter("reprieve_damaged_records_total", "Records that could not be read and were set aside."),
		clockSteps:      counter("reprieve_clock_steps_total", "Steps of the wall clock by more than 2 s, which the service's time does not follow."),
		clockDrift:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "reprieve_clock_drift_seconds", Help: "The wall clock's reading minus the service's time."}),
		deletions:       counter("taint_eviction_controller_pod_deletions_total", "Pods that were evicted."),
		deletionTime: histogram("taint_eviction_controller_pod_deletion_duration_seconds",
			"From the instant a pod was due until its deletion was ordered, in seconds.", longBuckets),
	}
	reg.MustRegister(m.lateness, m.delivery, m.feedLag, m.orders, m.results, m.nodeOrders, m.closed, m.events, m.denied, m.limited, m.auditLines, m.auditErrors, m.auditSuppressed, m.reloads, m.reloadErrors, m.commitTime, m.commitSize,
		m.commitErrors, m.unknownTokens, m.damaged, m.clockSteps, m.clockDrift, m.deletions, m.deletionTime)
	return m
}

// Sent implements engine.Observer.
func (m *metrics) Sent(cluster string, lateness time.Duration, _ uint32) {
	m.orders.WithLabelValues(cluster).Inc()
	m.lateness.WithLabelValues(cluster).Observe(lateness.Seconds())
	m.deletionTime.Observe(lateness.Seconds())
}

// Result implements engine.Observer.
func (m *metrics) Result(cluster string, outcome engine.Outcome, took time.Duration) {
	m.results.WithLabelValues(cluster, outcome.String()).Inc()
	m.delivery.WithLabelValues(cluster, outcome.String()).Observe(took.Seconds())
	if outcome == engine.OutcomeEvicted {
		m.deletions.Inc()
	}
}

// NodeResult implements engine.Observer.
func (m *metrics) NodeResult(cluster string, outcome engine.Outcome, _ time.Duration) {
	m.nodeOrders.WithLabelValues(cluster, outcome.String()).Inc()
}

// Closed implements engine.Observer.
func (m *metrics) Closed(cluster string, reason engine.CloseReason) {
	m.closed.WithLabelValues(cluster, reason.String()).Inc()
}

// Committed implements engine.Observer.
func (m *metrics) Committed(changes int, took time.Duration, err error) {
	if err != nil {
		m.commitErrors.Inc()
		return
	}
	m.commitTime.Observe(took.Seconds())
	m.commitSize.Observe(float64(changes))
}

// UnknownToken implements engine.Observer.
func (m *metrics) UnknownToken() { m.unknownTokens.Inc() }

// Damaged implements engine.Observer.
func (m *metrics) Damaged(string) { m.damaged.Inc() }

// Forgotten implements engine.Observer.
func (m *metrics) Forgotten(cluster string) {
	of := prometheus.Labels{"cluster": cluster}
	for _, v := range []*prometheus.HistogramVec{m.lateness, m.delivery, m.feedLag} {
		v.DeletePartialMatch(of)
	}
	for _, v := range []*prometheus.CounterVec{m.orders, m.results, m.nodeOrders, m.closed, m.events} {
		v.DeletePartialMatch(of)
	}
}

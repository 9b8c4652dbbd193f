package agent

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// metrics are the agent's, reprieve_agent_*.
type metrics struct {
	leader, synced prometheus.Gauge
	relists        *prometheus.CounterVec
	unfit          *prometheus.CounterVec
	orders         *prometheus.CounterVec
	orderSeconds   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "reprieve_agent_leader", Help: "1 while this agent feeds and executes, 0 while another one does.",
		}),
		synced: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "reprieve_agent_feed_synced", Help: "1 while the service has the whole cluster from this agent.",
		}),
		relists: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "reprieve_agent_relists_total", Help: "Times that a watch lost its place and listed again, by resource.",
		}, []string{"resource"}),
		unfit: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "reprieve_agent_unfit_objects_total",
			Help: "States of objects that are beyond the contract's bounds, by resource, and whether they were cut or left out.",
		}, []string{"resource", "done"}),
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "reprieve_agent_orders_total", Help: "Orders answered, by outcome.",
		}, []string{"outcome"}),
		orderSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "reprieve_agent_order_duration_seconds", Help: "Time from an order's arrival to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 15),
		}),
	}
	for _, resource := range []string{"nodes", "pods"} {
		m.relists.WithLabelValues(resource)
		m.unfit.WithLabelValues(resource, doneCut)
		m.unfit.WithLabelValues(resource, doneLeftOut)
	}
	for _, o := range []reprievev1.Outcome{
		reprievev1.Outcome_OUTCOME_EVICTED, reprievev1.Outcome_OUTCOME_GONE, reprievev1.Outcome_OUTCOME_SUPERSEDED, reprievev1.Outcome_OUTCOME_STALE,
		reprievev1.Outcome_OUTCOME_BLOCKED, reprievev1.Outcome_OUTCOME_DENIED, reprievev1.Outcome_OUTCOME_FAILED, reprievev1.Outcome_OUTCOME_RECALLED,
		reprievev1.Outcome_OUTCOME_APPLIED,
	} {
		m.orders.WithLabelValues(outcomeLabel(o))
	}
	if reg != nil {
		reg.MustRegister(m.leader, m.synced, m.relists, m.unfit, m.orders, m.orderSeconds)
	}
	return m
}

func outcomeLabel(o reprievev1.Outcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "OUTCOME_"))
}

func (m *metrics) answered(o reprievev1.Outcome, took time.Duration) {
	m.orders.WithLabelValues(outcomeLabel(o)).Inc()
	m.orderSeconds.Observe(took.Seconds())
}

func set(g prometheus.Gauge, on bool) {
	if on {
		g.Set(1)
	} else {
		g.Set(0)
	}
}

// sourceCollector tells of the watches as they are when asked.
type sourceCollector struct {
	source  *source
	age     *prometheus.Desc
	objects *prometheus.Desc
	queue   *prometheus.Desc
}

func newSourceCollector(s *source) *sourceCollector {
	return &sourceCollector{
		source:  s,
		age:     prometheus.NewDesc("reprieve_agent_watch_quiet_seconds", "Time since a watch showed life, by resource; absent while none stands.", []string{"resource"}, nil),
		objects: prometheus.NewDesc("reprieve_agent_objects", "Objects known, by resource.", []string{"resource"}, nil),
		queue:   prometheus.NewDesc("reprieve_agent_feed_queue", "Changes that wait to be fed.", nil, nil),
	}
}

// Describe implements [prometheus.Collector].
func (c *sourceCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.age
	ch <- c.objects
	ch <- c.queue
}

// Collect implements [prometheus.Collector].
func (c *sourceCollector) Collect(ch chan<- prometheus.Metric) {
	var nodes, pods, queued int
	if f := c.source.following(); f != nil {
		nodes, pods, queued = f.state.counts()
		for _, w := range f.followers {
			if quiet, open := w.quiet(); open {
				ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, quiet.Seconds(), w.resource)
			}
		}
	}
	if w := c.source.leases(); w != nil {
		if quiet, open := w.follower.quiet(); open {
			ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, quiet.Seconds(), w.follower.resource)
		}
	}
	ch <- prometheus.MustNewConstMetric(c.objects, prometheus.GaugeValue, float64(nodes), "nodes")
	ch <- prometheus.MustNewConstMetric(c.objects, prometheus.GaugeValue, float64(pods), "pods")
	ch <- prometheus.MustNewConstMetric(c.queue, prometheus.GaugeValue, float64(queued))
}

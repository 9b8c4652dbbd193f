package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

// collectTimeout bounds how long a scrape waits for the engine.
const collectTimeout = 5 * time.Second

// collector reads the clusters' status at each scrape.
type collector struct {
	engine *engine.Engine
	clock  clock.Clock
	logger *slog.Logger

	serving, storeSize, storeFree, open, held, stuck, overdue, feedAge, synced, enforcing, self, nodes, pods, executors, reprieves, ignored, damaged, foreign, tripped, looping *prometheus.Desc
	healthMode, healthBlind, healthHold, healthStale, healthDoubted, healthDisrupted, healthOther, healthStuck, unreadyNodes, taintWaiting                                      *prometheus.Desc
}

func newCollector(eng *engine.Engine, c clock.Clock, logger *slog.Logger) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		engine: eng, clock: c, logger: logger,
		serving:         desc("reprieve_serving", "1 while the store is open and evictions are handled."),
		storeSize:       desc("reprieve_store_size_bytes", "Size of the data file; it does not shrink."),
		storeFree:       desc("reprieve_store_free_bytes", "How much of the data file is room of removed records, to be used again."),
		open:            desc("reprieve_open_evictions", "Open evictions by state.", "cluster", "state"),
		held:            desc("reprieve_held_evictions", "Due evictions by what holds them.", "cluster", "hold"),
		stuck:           desc("reprieve_stuck_evictions", "Open evictions with 10 or more failed attempts.", "cluster"),
		overdue:         desc("reprieve_oldest_overdue_seconds", "Age of the oldest due instant that has no order out; 0 if there is none.", "cluster"),
		feedAge:         desc("reprieve_feed_age_seconds", "Since the feed's last message.", "cluster"),
		synced:          desc("reprieve_cluster_synced", "1 while the cluster's feed is live after a whole list.", "cluster"),
		enforcing:       desc("reprieve_cluster_enforcing", "1 if the cluster's mode is ENFORCE.", "cluster"),
		self:            desc("reprieve_self_in_enforcing_cluster", "1 if this service runs in a pod of the cluster and the mode is ENFORCE.", "cluster"),
		nodes:           desc("reprieve_nodes", "Nodes known.", "cluster"),
		pods:            desc("reprieve_pods", "Pods known.", "cluster"),
		executors:       desc("reprieve_executors", "Executors attached.", "cluster"),
		reprieves:       desc("reprieve_reprieves", "Reprieves known.", "cluster"),
		ignored:         desc("reprieve_ignored_input_total", "Input that was ignored, by kind.", "cluster", "kind"),
		damaged:         desc("reprieve_cluster_damaged", "1 if the cluster's record on disk is damaged.", "cluster"),
		tripped:         desc("reprieve_blast_radius_tripped", "Taint keys that came to too many nodes at once; what falls due by them on the rest is held.", "cluster"),
		looping:         desc("reprieve_looping_owners", "Owners whose pods keep coming back to a node that they are evicted from.", "cluster"),
		healthMode:      desc("reprieve_node_health_enforcing", "1 if node health of the cluster is ENFORCE, 0 if it is OBSERVE; none if it is OFF.", "cluster"),
		healthBlind:     desc("reprieve_node_health_blind", "1 while node health is on and nothing is known of the nodes' heartbeats.", "cluster"),
		healthHold:      desc("reprieve_node_health_silence_hold", "1 while nearly all nodes are silent at once, which is taken for the control plane's trouble.", "cluster"),
		healthStale:     desc("reprieve_node_health_stale", "1 while the feed of leases is known to be behind.", "cluster"),
		healthDoubted:   desc("reprieve_node_health_doubted", "1 while what executors answer as STALE counts for its own node alone, because the feed never bore it out.", "cluster"),
		healthDisrupted: desc("reprieve_node_health_disrupted", "1 while all zones are fully disrupted.", "cluster"),
		healthOther:     desc("reprieve_node_health_other_controller", "1 while node health is on and another controller was seen at work on the nodes.", "cluster"),
		healthStuck:     desc("reprieve_node_health_stuck_nodes", "Nodes whose orders failed 10 times or more in a row.", "cluster"),
		unreadyNodes:    desc("reprieve_node_health_unready_nodes", "Nodes by condition Ready as node health takes it.", "cluster", "ready"),
		taintWaiting:    desc("reprieve_node_health_waiting_nodes", "Nodes that wait for their NoExecute taint.", "cluster"),
		foreign:         desc("reprieve_foreign_evictions_total", "Pods that another controller evicted for taints while the cluster's mode was ENFORCE.", "cluster"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.serving, c.storeSize, c.storeFree, c.open, c.held, c.stuck, c.overdue, c.feedAge, c.synced, c.enforcing, c.self, c.nodes, c.pods, c.executors, c.reprieves, c.ignored, c.damaged,
		c.foreign, c.tripped, c.looping,
		c.healthMode, c.healthBlind, c.healthHold, c.healthStale, c.healthDoubted, c.healthDisrupted, c.healthOther, c.healthStuck, c.unreadyNodes, c.taintWaiting,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. While the store is being opened again
// there is nothing to tell but that.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	list, err := c.engine.Clusters(ctx, nil)
	ch <- prometheus.MustNewConstMetric(c.serving, prometheus.GaugeValue, flag01(err == nil))
	if err != nil {
		c.logger.Debug("metrics of clusters are not available", "error", err)
		return
	}
	if size, free, err := c.engine.StoreSize(); err == nil {
		ch <- prometheus.MustNewConstMetric(c.storeSize, prometheus.GaugeValue, float64(size))
		ch <- prometheus.MustNewConstMetric(c.storeFree, prometheus.GaugeValue, float64(free))
	}
	for _, st := range list {
		c.cluster(ch, st)
	}
}

func (c *collector) cluster(ch chan<- prometheus.Metric, st *engine.ClusterStatus) {
	name := st.Record.Name
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{name}, labels...)...)
	}
	// Every state and hold each time, so that a series that ends does so at 0.
	for s := engine.StateWaiting; s < engine.StateClosed; s++ {
		gauge(c.open, float64(st.Open[s]), s.String())
	}
	for h := engine.HoldClusterNotSynced; h <= engine.HoldRateLimited; h++ {
		gauge(c.held, float64(st.Holds[h]), h.String())
	}
	gauge(c.stuck, float64(st.Stuck))
	overdue := 0.0
	if !st.OldestDue.IsZero() {
		overdue = max(c.clock.Now().Sub(st.OldestDue).Seconds(), 0)
	}
	gauge(c.overdue, overdue)
	if !st.LastMessage.IsZero() {
		gauge(c.feedAge, st.FeedAge.Seconds())
	}
	gauge(c.synced, flag01(st.Sync == engine.SyncLive))
	gauge(c.enforcing, flag01(st.Policy.Mode == engine.ModeEnforce))
	gauge(c.self, flag01(st.EvictsSelf()))
	gauge(c.damaged, flag01(st.Damaged))
	gauge(c.nodes, float64(st.Nodes))
	gauge(c.pods, float64(st.Pods))
	gauge(c.executors, float64(len(st.Executors)))
	gauge(c.reprieves, float64(st.Reprieves))
	gauge(c.tripped, float64(len(st.Trips)))
	gauge(c.looping, float64(st.Looping))
	if h := st.Health; h != nil {
		c.health(gauge, h)
	}
	ch <- prometheus.MustNewConstMetric(c.foreign, prometheus.CounterValue, float64(st.Foreign.Total), name)
	for kind, n := range st.Ignored {
		ch <- prometheus.MustNewConstMetric(c.ignored, prometheus.CounterValue, float64(n), name, kind)
	}
}

// health tells of a cluster's node health while that is on.
func (c *collector) health(gauge func(*prometheus.Desc, float64, ...string), h *engine.ClusterHealth) {
	gauge(c.healthMode, flag01(h.Mode == engine.NodeHealthEnforce))
	gauge(c.healthBlind, flag01(!h.BlindSince.IsZero()))
	gauge(c.healthHold, flag01(!h.HeldSince.IsZero()))
	gauge(c.healthStale, flag01(!h.StaleSince.IsZero()))
	gauge(c.healthDoubted, flag01(!h.DoubtedSince.IsZero()))
	gauge(c.healthDisrupted, flag01(!h.DisruptedSince.IsZero()))
	gauge(c.healthOther, flag01(h.Other != ""))
	gauge(c.healthStuck, float64(h.Stuck))
	gauge(c.unreadyNodes, float64(h.NotReady), "False")
	gauge(c.unreadyNodes, float64(h.Unknown), "Unknown")
	waiting := 0
	for _, z := range h.Zones {
		waiting += z.Waiting
	}
	gauge(c.taintWaiting, float64(waiting))
}

func flag01(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

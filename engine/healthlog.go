package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine/health"
)

const (
	// healthLogRest is the least time between two lines of the log about one thing
	// of a cluster. What began and ended within it is not told.
	healthLogRest = 10 * time.Second
	// maxLogZones bounds the zones that a line names.
	maxLogZones = 10
)

// healthLog is what the log was last told of a cluster's node health: one line
// when it begins to hold back, and one when that ends. The owner's goroutine has it.
type healthLog struct {
	blind, hold, stale, doubted, disrupted, other toldState
	// zones are those that were told to be disrupted, and how.
	zones  map[string]health.ZoneState
	zoneAt time.Time
}

// toldState is whether something was told to be so, since when it is, and when that was told.
type toldState struct {
	on        bool
	since, at time.Time
}

// newHealthLog begins blind, which is no news.
func newHealthLog(now time.Time) healthLog {
	return healthLog{blind: toldState{on: true, since: now}, zones: map[string]health.ZoneState{}}
}

// turned notes how something is, and reports whether the log is to be told.
func (s *toldState) turned(since, now time.Time) bool {
	on := !since.IsZero()
	if on == s.on || !s.at.IsZero() && now.Sub(s.at) < healthLogRest {
		return false
	}
	s.on, s.at = on, now
	if s.on {
		s.since = since
	}
	return true
}

// tellLog tells the service's log what holds node health back, and what no longer does.
func (h *healthOwner) tellLog() {
	v, l := h.machine.ClusterView(), &h.log
	h.tellState(&l.blind, v.BlindSince, turn{
		begins: "node health is blind: the feed is not live or tells of no leases; no node is found silent",
		ends:   "node health is no longer blind"}, "feed_live", h.conf.live)
	h.tellState(&l.hold, v.HeldSince, turn{
		begins: "node health holds back: nearly all nodes fell silent at once, which is taken for the control plane's trouble; " +
			"no node becomes Unknown or gets a NoExecute taint",
		ends: "node health no longer holds back: nodes are heard again"}, "silent", v.Silent)
	h.tellState(&l.stale, v.StaleSince, turn{
		begins: "the feed of leases is behind what a live read showed; no node becomes Unknown until it has caught up, for a grace at most",
		ends:   "nodes may become Unknown again: the feed of leases has caught up, or has not within a grace"}, "executor", v.StaleBy)
	h.tellState(&l.doubted, v.DoubtedSince, turn{
		begins: "a heartbeat that an executor saw in a live read has not come within a grace; until one comes, what it answers as STALE counts for that node alone",
		ends:   "a heartbeat that an executor saw in a live read has come, or nothing is known of heartbeats any more; the answer STALE counts for the cluster again"}, "executor", v.StaleBy)
	h.tellState(&l.disrupted, v.DisruptedSince, turn{
		begins: "all zones are fully disrupted: no node keeps or gets a NoExecute taint for its health",
		ends:   "not all zones are fully disrupted any more: NoExecute taints come at the zones' rates"})
	seen, since := h.otherController(&v)
	h.tellState(&l.other, since, turn{
		begins: "two node controllers: another one works on the nodes of a cluster with node_health ENFORCE; " +
			"start kube-controller-manager with --controllers=*,-node-lifecycle-controller, or set node_health to OBSERVE",
		ends: "two node controllers no longer"}, "seen", seen)
	if h.conf.live {
		h.tellZones(v.Zones)
	}
}

// turn is what the log says when something begins, and when it ends.
type turn struct{ begins, ends string }

// tellState tells of one thing if it has turned; about is added to its beginning.
func (h *healthOwner) tellState(s *toldState, since time.Time, t turn, about ...any) {
	if !s.turned(since, h.now) {
		return
	}
	log := h.core.opts.Logger.With("cluster", h.cl.name, "since", s.since)
	if s.on {
		log.Warn(t.begins, about...)
	} else {
		log.Info(t.ends)
	}
}

// otherController is what shows another controller at work beside ENFORCE, and
// since when; the zero time while nothing does.
func (h *healthOwner) otherController(v *health.ClusterView) (seen string, since time.Time) {
	h.cl.mu.Lock()
	told := h.cl.last.NodeLifecycle
	h.cl.mu.Unlock()
	switch {
	case h.conf.policy.NodeHealth != NodeHealthEnforce:
	case told != "":
		return told, h.now
	case v.Other != "" && h.now.Sub(v.OtherAt) < otherFresh:
		return v.Other, v.OtherAt
	}
	return "", time.Time{}
}

// tellZones tells which zones are disrupted, or in another way than before, and
// which no longer are: a line each, whatever their number.
func (h *healthOwner) tellZones(zones []health.ZoneView) {
	l := &h.log
	if !l.zoneAt.IsZero() && h.now.Sub(l.zoneAt) < healthLogRest {
		return
	}
	var worse, well []string
	seen := map[string]health.ZoneState{}
	for _, z := range zones {
		name := z.Name
		if name == "" {
			name = "no zone"
		}
		switch {
		case z.State == health.ZoneNormal:
			continue
		case z.State != l.zones[name]:
			worse = append(worse, fmt.Sprintf("%s: %s, %d of %d nodes not ready", name, z.State, z.NotReady, z.Nodes))
		}
		seen[name] = z.State
	}
	for name := range l.zones {
		if seen[name] == health.ZoneUnspecified {
			well = append(well, name)
		}
	}
	if worse == nil && well == nil {
		return
	}
	l.zones, l.zoneAt = seen, h.now
	slices.Sort(well)
	if worse != nil {
		h.core.opts.Logger.Warn("zones are disrupted: their NoExecute taints come at other rates, or not at all",
			"cluster", h.cl.name, "count", len(worse), "zones", worse[:min(len(worse), maxLogZones)])
	}
	if well != nil {
		h.core.opts.Logger.Info("zones are no longer disrupted", "cluster", h.cl.name, "count", len(well), "zones", well[:min(len(well), maxLogZones)])
	}
}

package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func newExplainNode(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "node NAME",
		Short: "Why one node has its taints, and when it gets or loses one",
		Long: `Prints what node health knows of a node: its last heartbeat and when silence counts, the
taints that follow from its conditions with their reasons and times, its zone and what the
zone lets happen, the order that is out, and what would change it. While the policy's
node_health is off it prints the taints alone.`,
		Example: `  reprieve explain node n17 --cluster prod
  reprieve explain node n17 --cluster prod -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := a.flags.needCluster()
			if err != nil {
				return err
			}
			return a.query(cmd.Context(), func(ctx context.Context, q reprievev1.QueryServiceClient) error {
				x, err := q.ExplainNode(ctx, &reprievev1.ExplainNodeRequest{Cluster: cluster, Node: args[0]})
				if err != nil {
					return err
				}
				if a.flags.output != outputTable {
					return a.printMessage(x)
				}
				a.printNode(cluster, x)
				return nil
			})
		},
	}
}

func (a *app) printNode(cluster string, x *reprievev1.ExplainNodeResponse) {
	now := a.Clock.Now()
	if x.GetNow() != nil {
		now = x.GetNow().AsTime()
	}
	n, h := x.GetNode(), x.GetNode().GetHealth()
	s := newSheet(a.Out)
	name := n.GetName() + " (uid " + orDash(n.GetUid()) + ")"
	if !n.GetKnown() {
		name += ", which the feed has not shown"
	}
	s.row("Node", name)
	mode := "OFF"
	if x.GetClusterHealth() != nil {
		mode = word(x.GetClusterHealth().GetMode(), "NODE_HEALTH_MODE_")
	}
	s.row("Cluster", fmt.Sprintf("%s, mode %s, node health %s, feed %s", cluster, word(x.GetMode(), "MODE_"), mode, word(x.GetSyncState(), "SYNC_STATE_")))
	if h != nil {
		s.text("Ready", readyLine(h, now))
		s.text("Heartbeat", heartbeatLine(h, now))
		s.text("Zone", zoneLine(h, x.GetClusterHealth(), now))
	}
	s.block("Taints", taintLines(n, now)...)
	pods := plural(n.GetPods(), "pod", "pods") + ", " + plural(n.GetOpenEvictions(), "open eviction", "open evictions")
	if h.GetPodsPending() {
		if h.GetObservedOnly() {
			pods += "; their readiness would be set False"
		} else {
			pods += "; their readiness is yet to be set False"
		}
	}
	s.row("Pods", pods)
	if h != nil {
		s.text("Order", orderLine(h))
		if h.GetRemovals() > 0 {
			s.text("Removed", fmt.Sprintf("a taint was taken off %s by another hand while its reason stood, last %s", plural(uint64(h.GetRemovals()), "time", "times"), ago(h.GetLastRemovalTime(), now)))
		}
	}
	s.block("Node health of the cluster", clusterHealthLines(x.GetClusterHealth(), now)...)
	s.block("Warnings", x.GetWarnings()...)
	s.block("What would change it", x.GetWhatWouldChange()...)
}

func readyLine(h *reprievev1.NodeHealth, now time.Time) string {
	line := h.GetReady()
	if line == "" {
		line = "not told yet"
	}
	switch since := h.GetReadySince(); {
	case since == nil:
	case h.GetReadySinceSeen():
		line += ", seen so since " + instant(since) + " (" + ago(since, now) + ")"
	default:
		line += " for " + lasted(since, now)
	}
	if h.GetReason() != "" {
		line += ": " + h.GetReason()
	}
	return line
}

func heartbeatLine(h *reprievev1.NodeHealth, now time.Time) string {
	line := "none yet"
	if h.GetHeartbeatTime() != nil {
		line = "last " + ago(h.GetHeartbeatTime(), now)
	}
	switch {
	case h.GetSilentTime() == nil && !h.GetSilent():
		return line + "; silence does not count as long as the cluster is BLIND, HELD or STALE"
	case h.GetSilent():
		return line + "; silent since " + instant(h.GetSilentTime())
	default:
		return line + "; silent " + until(h.GetSilentTime().AsTime(), now) + " unless another comes"
	}
}

func zoneLine(h *reprievev1.NodeHealth, c *reprievev1.ClusterHealth, now time.Time) string {
	line := h.GetZone()
	if line == "" {
		line = "none (no region and zone labels)"
	}
	for _, z := range c.GetZones() {
		if z.GetName() == h.GetZone() {
			line += ", " + zoneWord(z, now)
		}
	}
	if h.GetExcluded() {
		line += "; this node does not count in it (node.kubernetes.io/exclude-disruption)"
	}
	return line
}

func zoneWord(z *reprievev1.ClusterHealth_Zone, now time.Time) string {
	line := fmt.Sprintf("%s: %d of %s not ready", strings.ReplaceAll(word(z.GetState(), "ZONE_STATE_"), "_", " "), z.GetNotReady(), plural(z.GetNodes(), "node", "nodes"))
	if z.GetWaiting() == 0 {
		return line
	}
	line += fmt.Sprintf(", %d wait for NoExecute at %g/s", z.GetWaiting(), z.GetTaintRate())
	if z.GetNextTaintTime() != nil {
		line += ", the next " + dueWord(z.GetNextTaintTime().AsTime(), now)
	}
	return line
}

// dueWord says when something is to happen.
func dueWord(at, now time.Time) string {
	if at.After(now) {
		return until(at, now)
	}
	return "now"
}

// clusterHealthLines are what of a cluster's node health is not as it should be, and its zones.
func clusterHealthLines(c *reprievev1.ClusterHealth, now time.Time) (lines []string) {
	if c == nil {
		return nil
	}
	if t := c.GetBlindTime(); t != nil {
		lines = append(lines, "BLIND for "+lasted(t, now)+": nothing is known of heartbeats, and silence does not count")
	}
	if t := c.GetStaleTime(); t != nil {
		lines = append(lines, "STALE for "+lasted(t, now)+": the leases that are fed are behind the live ones; no node becomes Unknown")
	}
	if t := c.GetSilenceHoldTime(); t != nil {
		lines = append(lines, fmt.Sprintf("HELD for %s: %s fell silent at once, which is taken for the control plane's trouble", lasted(t, now), plural(c.GetSilentNodes(), "node", "nodes")))
	}
	if t := c.GetDisruptionTime(); t != nil {
		lines = append(lines, "ALL ZONES DISRUPTED for "+lasted(t, now)+": no NoExecute taints for not-ready and unreachable")
	}
	if c.GetOtherController() != "" {
		lines = append(lines, fmt.Sprintf("another controller at work, seen %s: %s", ago(c.GetOtherControllerTime(), now), c.GetOtherController()))
	}
	for _, z := range c.GetZones() {
		name := z.GetName()
		if name == "" {
			name = "no zone"
		}
		lines = append(lines, name+": "+zoneWord(z, now))
	}
	return lines
}

func orderLine(h *reprievev1.NodeHealth) string {
	line := "none is out"
	if d := h.GetDelivery(); d != nil {
		line = "out with " + d.GetExecutorId() + ", whose answer counts until " + instant(d.GetDeadline())
	}
	if w := word(h.GetHold(), "HOLD_REASON_"); w != "-" {
		line += "; held: " + w
	}
	if h.GetAttempts() > 0 {
		line += fmt.Sprintf("; %d failed in a row", h.GetAttempts())
	}
	if h.GetLastOutcome() != reprievev1.Outcome_OUTCOME_UNSPECIFIED {
		line += "; last answer " + strings.TrimSpace(word(h.GetLastOutcome(), "OUTCOME_")+" "+h.GetLastMessage())
	}
	return line
}

// nodeTaint is one taint of a node, as the decisions on pods and node health know it.
type nodeTaint struct {
	pods   *reprievev1.NodeTaint
	health *reprievev1.NodeHealth_HealthTaint
	// observed: nobody carries its change out.
	observed bool
}

// nodeTaints joins what is known of a node's taints, the NoExecute ones that count first.
func nodeTaints(n *reprievev1.NodeView) (list []nodeTaint) {
	taken := map[int]bool{}
	for _, t := range n.GetTaints() {
		one := nodeTaint{pods: t, observed: n.GetHealth().GetObservedOnly()}
		for i, h := range n.GetHealth().GetTaints() {
			// The decisions on pods know no effect but this one.
			if h.GetTaint().GetKey() == t.GetTaint().GetKey() && h.GetTaint().GetEffect() == "NoExecute" {
				one.health, taken[i] = h, true
			}
		}
		list = append(list, one)
	}
	for i, h := range n.GetHealth().GetTaints() {
		if !taken[i] {
			list = append(list, nodeTaint{health: h, observed: n.GetHealth().GetObservedOnly()})
		}
	}
	return list
}

func (t nodeTaint) name() string {
	if t.pods != nil {
		return taintWord(t.pods.GetTaint()) + ":NoExecute"
	}
	return taintWord(t.health.GetTaint()) + ":" + t.health.GetTaint().GetEffect()
}

// since is from when the taint counts for pods, or else when it came; nil while it is not there.
func (t nodeTaint) since() *timestamppb.Timestamp {
	switch {
	case t.pods != nil:
		return t.pods.GetStart()
	case t.health.GetPresent():
		return t.health.GetSince()
	}
	return nil
}

// lasts is for how long that is so.
func (t nodeTaint) lasts(now time.Time) string {
	if since := t.since(); since != nil {
		return lasted(since, now)
	}
	return "-"
}

// change is what is to happen to the taint, and when; what is only observed would happen.
func (t nodeTaint) change(now time.Time) string {
	var verb string
	switch c := t.health.GetChange(); {
	case c == reprievev1.NodeHealth_CHANGE_ADD && t.observed:
		verb = "would come"
	case c == reprievev1.NodeHealth_CHANGE_ADD:
		verb = "comes"
	case c == reprievev1.NodeHealth_CHANGE_REMOVE && t.observed:
		verb = "would go"
	case c == reprievev1.NodeHealth_CHANGE_REMOVE:
		verb = "goes"
	default:
		return "-"
	}
	if w := word(t.health.GetHold(), "HOLD_REASON_"); w != "-" {
		return verb + ": " + w
	}
	if at := t.health.GetChangeTime(); at != nil {
		return verb + " " + dueWord(at.AsTime(), now)
	}
	return verb
}

func taintLines(n *reprievev1.NodeView, now time.Time) (lines []string) {
	for _, t := range nodeTaints(n) {
		line := t.name()
		switch since := t.since(); {
		case since == nil:
		case t.pods != nil:
			line += ", pods' waits count from " + ago(since, now)
		default:
			line += ", for " + lasted(since, now)
		}
		if c := t.change(now); c != "-" {
			line += ", " + c
		}
		if r := t.health.GetReason(); r != "" {
			line += ": " + r
		}
		lines = append(lines, line)
	}
	return lines
}

// healthTable shows nodes of a cluster whose health is watched, a row for each taint
// that is there or is to come.
func healthTable(list []*reprievev1.NodeView, now time.Time) *table {
	t := &table{columns: []column{{title: "NODE", min: 16, nodes: true}, {title: "READY"}, {title: "TAINT", min: 22}, {title: "FOR"}, {title: "CHANGE", min: 20}, {title: "PODS"}, {title: "LEAVING"}}}
	for _, n := range list {
		pods, open := strconv.FormatUint(n.GetPods(), 10), strconv.FormatUint(n.GetOpenEvictions(), 10)
		ready := readyWord(n.GetHealth(), now)
		taints := nodeTaints(n)
		if len(taints) == 0 {
			t.add(n.GetName(), ready, "-", "-", "-", pods, open)
		}
		for _, one := range taints {
			t.add(n.GetName(), ready, shortKey(one.name()), one.lasts(now), one.change(now), pods, open)
		}
	}
	return t
}

// readyWord is a node's readiness, and for how long it is none.
func readyWord(h *reprievev1.NodeHealth, now time.Time) string {
	w := orDash(h.GetReady())
	if w != "True" && h.GetReadySince() != nil {
		w += " " + lasted(h.GetReadySince(), now)
	}
	return w
}

// lasted is how long something has been so.
func lasted(since *timestamppb.Timestamp, now time.Time) string {
	return shortDuration(max(now.Sub(since.AsTime()), 0).Truncate(time.Second))
}

package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// getCluster prints one cluster in full.
func (a *app) getCluster(ctx context.Context, name string) error {
	return a.query(ctx, func(ctx context.Context, q reprievev1.QueryServiceClient) error {
		r, err := q.GetCluster(ctx, &reprievev1.GetClusterRequest{Cluster: name})
		if err != nil {
			return err
		}
		if a.flags.output != outputTable {
			return a.printMessage(r.GetCluster())
		}
		a.printCluster(r.GetCluster())
		return nil
	})
}

func (a *app) printCluster(c *reprievev1.Cluster) {
	now := a.Clock.Now()
	s := newSheet(a.Out)
	s.row("Cluster", c.GetName()+" (uid "+orDash(c.GetClusterUid())+")")
	s.row("Mode", modeWord(c.GetMode()))
	feed := feedWord(c)
	if c.GetFeedAge() != nil {
		feed += " ago"
	}
	s.row("Feed", feed+", feeder "+orDash(c.GetFeederId())+fmt.Sprintf(" (epoch %d)", c.GetFeederEpoch()))
	s.row("Adopted", instant(c.GetAdoptTime()))
	s.row("Objects", plural(c.GetNodes(), "node", "nodes")+", "+plural(c.GetPods(), "pod", "pods"))
	var open []string
	for _, n := range c.GetOpenEvictions() {
		open = append(open, fmt.Sprintf("%d %s", n.GetCount(), word(n.GetState(), "EVICTION_STATE_")))
	}
	s.row("Open", orDash(strings.Join(open, ", ")))
	var holds []string
	for _, h := range c.GetHolds() {
		holds = append(holds, fmt.Sprintf("%d %s", h.GetCount(), word(h.GetHold(), "HOLD_REASON_")))
	}
	s.row("Held", orDash(strings.Join(holds, ", ")))
	if c.GetOldestDueTime() != nil {
		s.row("Oldest", countdown(c.GetOldestDueTime(), now))
	}
	s.row("Stuck", fmt.Sprint(c.GetStuckEvictions()))
	s.row("Reprieves", fmt.Sprint(c.GetReprieves()))
	var lines []string
	for _, x := range c.GetExecutors() {
		lines = append(lines, fmt.Sprintf("%s: %d of %d orders out, attached %s", x.GetExecutorId(), x.GetOutstanding(), x.GetCapacity(), ago(x.GetConnectTime(), now)))
	}
	s.block("Executors", lines...)
	lines = nil
	for _, p := range c.GetPauses() {
		lines = append(lines, fmt.Sprintf("%s: %s, ends %s, by %s: %s", p.GetId(), scopeWord(p.GetNode(), p.GetNamespace()), ends(p.GetEndTime(), now), orDash(p.GetActor()), p.GetReason()))
	}
	s.block("Pauses", lines...)
	lines = nil
	for _, kind := range slices.Sorted(maps.Keys(c.GetIgnored())) {
		if n := c.GetIgnored()[kind]; n > 0 {
			lines = append(lines, fmt.Sprintf("%d %s", n, kind))
		}
	}
	s.block("Ignored", lines...)
	if h := c.GetNodeHealth(); h != nil {
		s.row("Node health", word(h.GetMode(), "NODE_HEALTH_MODE_"))
		s.block("Zones and node health", clusterHealthLines(h, now)...)
	}
	s.block("Warnings", c.GetWarnings()...)
	s.block("Policy", folded(policyLines(c.GetPolicy(), nil))...)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// modeWord says what a mode means.
func modeWord(m reprievev1.Mode) string {
	switch m {
	case reprievev1.Mode_MODE_SHADOW:
		return "SHADOW (all is decided and recorded, nothing is sent)"
	case reprievev1.Mode_MODE_ENFORCE:
		return "ENFORCE (due evictions are sent)"
	default:
		return "-"
	}
}

package cli

import (
	"fmt"
	"strconv"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// evictionTable shows open evictions. The cluster has a column if several may be shown.
func evictionTable(list []*reprievev1.Eviction, withCluster bool, now time.Time) *table {
	t := &table{columns: []column{{title: "POD", min: 16}, {title: "NODE", min: 8, nodes: true}, {title: "STATE"}, {title: "WHEN"}, {title: "WHY", min: 14}}}
	if withCluster {
		t.columns = append([]column{{title: "CLUSTER", min: 7}}, t.columns...)
	}
	for _, e := range list {
		row := []string{podWord(e.GetNamespace(), e.GetPod()), e.GetNode(), stateWord(e, now), countdown(e.GetDueTime(), now), causeWord(e.GetCause())}
		if withCluster {
			row = append([]string{e.GetCluster()}, row...)
		}
		t.add(row...)
	}
	return t
}

// historyTable shows closed evictions; FAILS counts the orders that were denied,
// failed or left without an answer.
func historyTable(list []*reprievev1.Eviction, now time.Time) *table {
	t := &table{columns: []column{{title: "CLOSED"}, {title: "POD", min: 16}, {title: "NODE", min: 8, nodes: true}, {title: "RESULT"}, {title: "LATE"}, {title: "FAILS"}, {title: "WHY", min: 14}}}
	for _, e := range list {
		t.add(ago(e.GetCloseTime(), now), podWord(e.GetNamespace(), e.GetPod()), e.GetNode(), closeWord(e), late(e), strconv.FormatUint(uint64(e.GetAttempts()), 10), causeWord(e.GetCause()))
	}
	return t
}

func closeWord(e *reprievev1.Eviction) string {
	w := word(e.GetCloseReason(), "CLOSE_REASON_")
	if c := e.GetCancelCause(); c != reprievev1.CancelCause_CANCEL_CAUSE_UNSPECIFIED {
		w += " " + word(c, "CANCEL_CAUSE_")
	}
	return w
}

// late is how long after its due instant the first order was sent.
func late(e *reprievev1.Eviction) string {
	if e.GetFirstSendTime() == nil || e.GetDueTime() == nil {
		return "-"
	}
	d := e.GetFirstSendTime().AsTime().Sub(e.GetDueTime().AsTime())
	if d < 10*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return shortDuration(d)
}

func stateCount(c *reprievev1.Cluster, states ...reprievev1.EvictionState) string {
	var n uint64
	for _, sc := range c.GetOpenEvictions() {
		for _, s := range states {
			if sc.GetState() == s {
				n += sc.GetCount()
			}
		}
	}
	return strconv.FormatUint(n, 10)
}

// clusterTable shows clusters; OLDEST is how long the oldest due eviction has
// been due, OUT counts orders that are delivered, recalled or being confirmed.
func clusterTable(list []*reprievev1.Cluster, now time.Time) *table {
	t := &table{columns: []column{{title: "CLUSTER", min: 12}, {title: "MODE"}, {title: "FEED"}, {title: "NODES"}, {title: "PODS"}, {title: "WAIT"}, {title: "DUE"}, {title: "OUT"}, {title: "OLDEST"}, {title: "EXEC"}, {title: "NOTES", min: 8}}}
	for _, c := range list {
		oldest := "-"
		if c.GetOldestDueTime() != nil {
			oldest = shortDuration(now.Sub(c.GetOldestDueTime().AsTime()).Truncate(time.Second))
		}
		t.add(c.GetName(), word(c.GetMode(), "MODE_"), feedWord(c),
			strconv.FormatUint(c.GetNodes(), 10), strconv.FormatUint(c.GetPods(), 10),
			stateCount(c, reprievev1.EvictionState_EVICTION_STATE_WAITING), stateCount(c, reprievev1.EvictionState_EVICTION_STATE_DUE),
			stateCount(c, reprievev1.EvictionState_EVICTION_STATE_DELIVERED, reprievev1.EvictionState_EVICTION_STATE_RECALLING, reprievev1.EvictionState_EVICTION_STATE_CONFIRMING),
			oldest, strconv.Itoa(len(c.GetExecutors())), clusterNotes(c))
	}
	return t
}

func feedWord(c *reprievev1.Cluster) string {
	w := word(c.GetSyncState(), "SYNC_STATE_")
	if w == "NEVER_SYNCED" {
		w = "NEVER"
	}
	if c.GetFeedAge() != nil {
		w += " " + shortDuration(c.GetFeedAge().AsDuration().Truncate(time.Second))
	}
	return w
}

func clusterNotes(c *reprievev1.Cluster) string {
	notes := ""
	note := func(format string, args ...any) {
		if notes != "" {
			notes += ", "
		}
		notes += fmt.Sprintf(format, args...)
	}
	if c.GetDamaged() {
		note("DAMAGED")
	}
	if n := c.GetStuckEvictions(); n > 0 {
		note("%d stuck", n)
	}
	if n := len(c.GetPauses()); n > 0 {
		note("%d paused", n)
	}
	if n := len(c.GetWarnings()); n > 0 {
		note("%d warned", n)
	}
	if notes == "" {
		return "-"
	}
	return notes
}

// nodeTable has one row a taint, the node's name on each so that rows can be picked by grep.
func nodeTable(list []*reprievev1.NodeView, now time.Time) *table {
	for _, n := range list {
		if n.GetHealth() != nil {
			return healthTable(list, now)
		}
	}
	t := &table{columns: []column{{title: "NODE", min: 12, nodes: true}, {title: "TAINT (NoExecute)", min: 20}, {title: "STARTED"}, {title: "PODS"}, {title: "LEAVING"}}}
	for _, n := range list {
		pods, open := strconv.FormatUint(n.GetPods(), 10), strconv.FormatUint(n.GetOpenEvictions(), 10)
		if len(n.GetTaints()) == 0 {
			t.add(n.GetName(), "-", "-", pods, open)
		}
		for _, nt := range n.GetTaints() {
			t.add(n.GetName(), taintWord(nt.GetTaint()), ago(nt.GetStart(), now), pods, open)
		}
	}
	return t
}

func reprieveTable(list []*reprievev1.Reprieve, now time.Time) *table {
	t := &table{columns: []column{{title: "POD", min: 18}, {title: "UID", min: 10}, {title: "ENDS"}, {title: "GRANTED"}, {title: "BY", min: 8}, {title: "REASON", min: 16}}}
	for _, r := range list {
		t.add(podWord(r.GetNamespace(), r.GetPod()), r.GetUid(), ends(r.GetEndTime(), now), ago(r.GetCreateTime(), now), r.GetActor(), r.GetReason())
	}
	return t
}

func pauseTable(list []*reprievev1.Pause, now time.Time) *table {
	t := &table{columns: []column{{title: "PAUSE", min: 8}, {title: "SCOPE", min: 16}, {title: "ENDS"}, {title: "SINCE"}, {title: "BY", min: 8}, {title: "REASON", min: 16}}}
	for _, p := range list {
		t.add(p.GetId(), scopeWord(p.GetNode(), p.GetNamespace()), ends(p.GetEndTime(), now), ago(p.GetCreateTime(), now), p.GetActor(), p.GetReason())
	}
	return t
}

// scopeWord names a pause's scope.
func scopeWord(node, namespace string) string {
	switch {
	case node != "":
		return "node " + node
	case namespace != "":
		return "namespace " + namespace
	default:
		return "whole cluster"
	}
}

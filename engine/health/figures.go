package health

import "time"

// Figures are the figures by which node health is judged (ClusterPolicy, node_health_figures).
type Figures struct {
	// Grace is the silence after which a node counts as silent; StartupGrace is that
	// of a node that has never sent a heartbeat.
	Grace, StartupGrace time.Duration
	// The rates are nodes a second that get a NoExecute taint, in one zone: in a
	// normal one, in a fully disrupted one while another is not, in a partially
	// disrupted one of more than LargeZone nodes, and in a smaller such one.
	Rate, FullRate, PartialRate, SmallRate float64
	LargeZone                              int
	// A zone is partially disrupted with at least UnhealthyNodes and UnhealthyShare of its nodes not ready.
	UnhealthyShare float64
	UnhealthyNodes int
	// SilenceShare of the nodes heard, silent within SilenceWindow, is the control plane's trouble.
	SilenceShare       float64
	SilenceWindow      time.Duration
	DisableSilenceHold bool
}

// DefaultFigures are those of the built-in controller, where it has them.
func DefaultFigures() Figures {
	return Figures{
		Grace: 50 * time.Second, StartupGrace: 60 * time.Second,
		Rate: 0.1, FullRate: 0.1, PartialRate: 0.01, SmallRate: 0, LargeZone: 50,
		UnhealthyShare: 0.55, UnhealthyNodes: 3,
		SilenceShare: 0.9, SilenceWindow: 15 * time.Second,
	}
}

package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"google.golang.org/grpc"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// eventReason is the reason of the built-in controller's events on pods
// (kubernetes pkg/controller/tainteviction), by which people look for them.
const eventReason = "TaintManagerEviction"

// The reasons of events on nodes: the first is the node lifecycle controller's,
// which has it on the node's pods too, and the others are the kubelet's.
const (
	nodeNotReady = "NodeNotReady"
	nodeReady    = "NodeReady"
)

// taintReasons are the reasons of events on nodes for the taints that follow from
// conditions: when one is added, and when it is removed.
var taintReasons = map[string][2]string{
	corev1.TaintNodeNotReady:           {nodeNotReady, nodeReady},
	corev1.TaintNodeUnreachable:        {nodeNotReady, nodeReady},
	corev1.TaintNodeUnschedulable:      {"NodeNotSchedulable", "NodeSchedulable"},
	corev1.TaintNodeMemoryPressure:     {"NodeHasInsufficientMemory", "NodeHasSufficientMemory"},
	corev1.TaintNodeDiskPressure:       {"NodeHasDiskPressure", "NodeHasNoDiskPressure"},
	corev1.TaintNodePIDPressure:        {"NodeHasInsufficientPID", "NodeHasSufficientPID"},
	corev1.TaintNodeNetworkUnavailable: {"NodeNetworkUnavailable", "NodeNetworkAvailable"},
}

// announcer writes events on pods and nodes. Events of one object that are alike
// are aggregated by client-go's recorder.
type announcer struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

func newAnnouncer(ctx context.Context, core typedcorev1.EventsGetter) *announcer {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: core.Events("")})
	return &announcer{broadcaster: b, recorder: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "reprieve"})}
}

func (a *announcer) stop() { a.broadcaster.Shutdown() }

// marked tells that a pod was made to leave.
func (a *announcer) marked(p *reprievev1.EvictPod) {
	a.event(p.GetNamespace(), p.GetName(), p.GetUid(), "Marking for deletion Pod "+p.GetNamespace()+"/"+p.GetName()+": "+causeText(p.GetCause()))
}

// cancelled tells that a pod's wait ended without its eviction.
func (a *announcer) cancelled(e *reprievev1.Eviction) {
	a.event(e.GetNamespace(), e.GetPod(), e.GetUid(),
		"Cancelling deletion of Pod "+e.GetNamespace()+"/"+e.GetPod()+": "+cancelText(e)+"; it was due at "+e.GetDueTime().AsTime().Format(time.RFC3339))
}

func (a *announcer) event(namespace, name, uid, message string) {
	a.recorder.Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid),
	}, corev1.EventTypeNormal, eventReason, message)
}

// nodeChanged implements [notes].
func (a *announcer) nodeChanged(o *reprievev1.UpdateNode, reason, message string) {
	a.recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: o.GetName(), UID: types.UID(o.GetUid())}, corev1.EventTypeNormal, reason, message)
}

// podNotReady implements [notes].
func (a *announcer) podNotReady(p *corev1.Pod) {
	a.recorder.Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID,
	}, corev1.EventTypeWarning, nodeNotReady, "Node is not ready")
}

// taintReason is the reason of an event on a node whose taints changed.
func taintReason(added, removed []corev1.Taint) string {
	for i, list := range [][]corev1.Taint{added, removed} {
		for j := range list {
			if r, ok := taintReasons[list[j].Key]; ok {
				return r[i]
			}
		}
	}
	return "TaintsChanged"
}

// withReason adds the service's reason to a message.
func withReason(message, reason string) string {
	if reason == "" {
		return message
	}
	return message + ": " + reason
}

// watch tells of cancellations until ctx is done, while enforcing says that the
// cluster's evictions are ours.
func (a *announcer) watch(ctx context.Context, conn grpc.ClientConnInterface, cluster string, enforcing func() bool) error {
	return client.Watch(ctx, conn, &reprievev1.WatchEvictionsRequest{Cluster: cluster}, func(w client.WatchEvent) error {
		e := w.Eviction
		if e.GetState() == reprievev1.EvictionState_EVICTION_STATE_CLOSED && e.GetCloseReason() == reprievev1.CloseReason_CLOSE_REASON_CANCELLED && enforcing() {
			a.cancelled(e)
		}
		return nil
	})
}

// taintText is the taint of a cause as kubectl writes taints.
func taintText(c *reprievev1.Cause) string {
	t := c.GetTaint().GetTaint()
	if t.GetValue() == "" {
		return t.GetKey() + ":" + t.GetEffect()
	}
	return t.GetKey() + "=" + t.GetValue() + ":" + t.GetEffect()
}

// causeText says why a pod leaves, and how long it was let stay.
func causeText(c *reprievev1.Cause) string {
	if r := c.GetRequest(); r != nil {
		text := "requested by " + r.GetRequester()
		if r.GetReason() != "" {
			text += " (" + r.GetReason() + ")"
		}
		return text
	}
	t := c.GetTaint()
	if t == nil {
		return "for no cause that the service named"
	}
	text := "taint " + taintText(c)
	switch {
	case t.GetToleration() == nil && !t.GetDefaultToleration():
		return text + ", not tolerated"
	case t.GetDefaultToleration():
		return fmt.Sprintf("%s, tolerated for %s by default, since %s", text, t.GetWait().AsDuration(), t.GetStart().AsTime().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s, tolerated for %s since %s", text, t.GetWait().AsDuration(), t.GetStart().AsTime().Format(time.RFC3339))
}

// cancelText says what took an eviction's reason away.
func cancelText(e *reprievev1.Eviction) string {
	switch e.GetCancelCause() {
	case reprievev1.CancelCause_CANCEL_CAUSE_TAINT_REMOVED:
		return "taint " + taintText(e.GetCause()) + " was removed from node " + e.GetNode()
	case reprievev1.CancelCause_CANCEL_CAUSE_TOLERATION:
		return "the pod tolerates taint " + taintText(e.GetCause()) + " now"
	case reprievev1.CancelCause_CANCEL_CAUSE_POLICY:
		return "the cluster's policy changed"
	case reprievev1.CancelCause_CANCEL_CAUSE_REQUEST_WITHDRAWN:
		return "the request for it was withdrawn"
	case reprievev1.CancelCause_CANCEL_CAUSE_REPRIEVE:
		return "a reprieve was granted"
	}
	name := strings.TrimPrefix(e.GetCancelCause().String(), "CANCEL_CAUSE_")
	return strings.ToLower(strings.ReplaceAll(name, "_", " "))
}

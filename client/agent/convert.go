package agent

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// strip takes out of an object what no decision needs, so that a list under way
// holds little. It changes objects that nobody else holds yet.
func strip(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.Node:
		stripMeta(&o.ObjectMeta)
		o.Spec = corev1.NodeSpec{Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable}
		o.Status = corev1.NodeStatus{Conditions: o.Status.Conditions}
	case *corev1.Pod:
		stripMeta(&o.ObjectMeta)
		o.Spec = corev1.PodSpec{
			NodeName: o.Spec.NodeName, Tolerations: o.Spec.Tolerations, Priority: o.Spec.Priority,
			PriorityClassName: o.Spec.PriorityClassName, TerminationGracePeriodSeconds: o.Spec.TerminationGracePeriodSeconds,
		}
		var kept []corev1.PodCondition
		for _, c := range o.Status.Conditions {
			if c.Status == corev1.ConditionTrue && (c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget) {
				kept = append(kept, c)
			}
		}
		o.Status = corev1.PodStatus{Phase: o.Status.Phase, StartTime: o.Status.StartTime, Conditions: kept}
	case *coordinationv1.Lease:
		o.ObjectMeta = metav1.ObjectMeta{
			Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
			Annotations: only(o.Annotations, metav1.InitialEventsAnnotationKey),
		}
		o.Spec = coordinationv1.LeaseSpec{RenewTime: o.Spec.RenewTime}
	case *coordinationv1.LeaseList:
		for i := range o.Items {
			strip(&o.Items[i])
		}
	case *corev1.NodeList:
		for i := range o.Items {
			strip(&o.Items[i])
		}
	case *corev1.PodList:
		for i := range o.Items {
			strip(&o.Items[i])
		}
	}
}

func stripMeta(m *metav1.ObjectMeta) {
	*m = metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, OwnerReferences: m.OwnerReferences,
		// A bookmark says in an annotation that the list before it is complete.
		Annotations: only(m.Annotations, corev1.MirrorPodAnnotationKey, metav1.InitialEventsAnnotationKey),
	}
}

// only is a map's part with these keys; nil if it has none.
func only(m map[string]string, keys ...string) map[string]string {
	var kept map[string]string
	for _, k := range keys {
		if v, ok := m[k]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[k] = v
		}
	}
	return kept
}

// event is what the service is told of an object. It leaves out the resource
// version, so that a change of what nobody decides on is no change.
func event(obj any, kind reprievev1.Event_EventType) (*reprievev1.Event, error) {
	switch o := obj.(type) {
	case *corev1.Node:
		return &reprievev1.Event{Type: kind, Object: &reprievev1.Event_Node{Node: node(o)}}, nil
	case *corev1.Pod:
		return &reprievev1.Event{Type: kind, Object: &reprievev1.Event_Pod{Pod: pod(o)}}, nil
	}
	return nil, fmt.Errorf("an object of type %T among nodes and pods", obj)
}

func node(o *corev1.Node) *reprievev1.Node {
	n := &reprievev1.Node{
		Name: o.Name, Uid: string(o.UID), Labels: o.Labels, Unschedulable: o.Spec.Unschedulable, CreationTime: instant(&o.CreationTimestamp),
	}
	for _, t := range o.Spec.Taints {
		n.Taints = append(n.Taints, &reprievev1.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect), TimeAdded: instant(t.TimeAdded)})
	}
	for i := range o.Status.Conditions {
		c := &o.Status.Conditions[i]
		n.Conditions = append(n.Conditions, &reprievev1.NodeCondition{
			Type: string(c.Type), Status: string(c.Status), Reason: c.Reason,
			LastHeartbeatTime: instant(&c.LastHeartbeatTime), LastTransitionTime: instant(&c.LastTransitionTime),
		})
	}
	return n
}

func pod(o *corev1.Pod) *reprievev1.Pod {
	_, mirror := o.Annotations[corev1.MirrorPodAnnotationKey]
	p := &reprievev1.Pod{
		Namespace: o.Namespace, Name: o.Name, Uid: string(o.UID), NodeName: o.Spec.NodeName, Labels: o.Labels,
		Phase: string(o.Status.Phase), Mirror: mirror, DeletionTime: instant(o.DeletionTimestamp),
		CreationTime: instant(&o.CreationTimestamp), StartTime: instant(o.Status.StartTime),
		Priority: o.Spec.Priority, PriorityClassName: o.Spec.PriorityClassName,
		TerminationGracePeriodSeconds: o.Spec.TerminationGracePeriodSeconds,
	}
	for i := range o.Status.Conditions {
		c := &o.Status.Conditions[i]
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodScheduled:
			p.ScheduledTime = instant(&c.LastTransitionTime)
		case c.Type == corev1.DisruptionTarget:
			p.DisruptionReason, p.DisruptionTime = c.Reason, instant(&c.LastTransitionTime)
		}
	}
	for i := range o.Spec.Tolerations {
		t := &o.Spec.Tolerations[i]
		p.Tolerations = append(p.Tolerations, &reprievev1.Toleration{
			Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect), TolerationSeconds: t.TolerationSeconds,
		})
	}
	for i := range o.OwnerReferences {
		r := &o.OwnerReferences[i]
		p.OwnerReferences = append(p.OwnerReferences, &reprievev1.OwnerReference{
			ApiVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, Uid: string(r.UID), Controller: r.Controller != nil && *r.Controller,
		})
	}
	return p
}

// instant is a Kubernetes time; absent if it is not set.
func instant(t *metav1.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t.Time)
}

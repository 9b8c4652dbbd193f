package timeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// object has the fields of a v1 Node or Pod that a feed carries.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
		CreationTimestamp *time.Time        `json:"creationTimestamp"`
		DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
		OwnerReferences   []struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Name       string `json:"name"`
			UID        string `json:"uid"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		Taints []struct {
			Key       string     `json:"key"`
			Value     string     `json:"value"`
			Effect    string     `json:"effect"`
			TimeAdded *time.Time `json:"timeAdded"`
		} `json:"taints"`
		Unschedulable bool   `json:"unschedulable"`
		NodeName      string `json:"nodeName"`
		Tolerations   []struct {
			Key               string `json:"key"`
			Operator          string `json:"operator"`
			Value             string `json:"value"`
			Effect            string `json:"effect"`
			TolerationSeconds *int64 `json:"tolerationSeconds"`
		} `json:"tolerations"`
		Priority                      *int32 `json:"priority"`
		PriorityClassName             string `json:"priorityClassName"`
		TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds"`
	} `json:"spec"`
	Status struct {
		Phase      string     `json:"phase"`
		StartTime  *time.Time `json:"startTime"`
		Conditions []struct {
			Type               string     `json:"type"`
			Status             string     `json:"status"`
			Reason             string     `json:"reason"`
			LastHeartbeatTime  *time.Time `json:"lastHeartbeatTime"`
			LastTransitionTime *time.Time `json:"lastTransitionTime"`
		} `json:"conditions"`
	} `json:"status"`
}

// mirrorAnnotation marks the mirror pod of a static pod (Kubernetes core/v1 MirrorPodAnnotationKey).
const mirrorAnnotation = "kubernetes.io/config.mirror"

// decodeObject reads the fields that a feed carries from one object.
func decodeObject(raw json.RawMessage) (*object, error) {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, fmt.Errorf("field %s: a %s cannot be there", wrong.Field, wrong.Value)
		}
		return nil, fmt.Errorf("not a Kubernetes object: %w", err)
	}
	return &o, nil
}

func ts(t *time.Time) *timestamppb.Timestamp {
	if t == nil || t.IsZero() {
		return nil
	}
	return timestamppb.New(*t)
}

func (o *object) node() *reprievev1.Node {
	n := &reprievev1.Node{
		Name: o.Metadata.Name, Uid: o.Metadata.UID, Labels: o.Metadata.Labels, Unschedulable: o.Spec.Unschedulable,
		CreationTime: ts(o.Metadata.CreationTimestamp), ResourceVersion: o.Metadata.ResourceVersion,
	}
	for _, t := range o.Spec.Taints {
		n.Taints = append(n.Taints, &reprievev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect, TimeAdded: ts(t.TimeAdded)})
	}
	for _, c := range o.Status.Conditions {
		n.Conditions = append(n.Conditions, &reprievev1.NodeCondition{
			Type: c.Type, Status: c.Status, Reason: c.Reason,
			LastHeartbeatTime: ts(c.LastHeartbeatTime), LastTransitionTime: ts(c.LastTransitionTime),
		})
	}
	return n
}

func (o *object) pod() *reprievev1.Pod {
	_, mirror := o.Metadata.Annotations[mirrorAnnotation]
	p := &reprievev1.Pod{
		Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Uid: o.Metadata.UID, NodeName: o.Spec.NodeName,
		Labels: o.Metadata.Labels, Phase: o.Status.Phase, Mirror: mirror,
		DeletionTime: ts(o.Metadata.DeletionTimestamp), CreationTime: ts(o.Metadata.CreationTimestamp),
		StartTime: ts(o.Status.StartTime), Priority: o.Spec.Priority, PriorityClassName: o.Spec.PriorityClassName,
		TerminationGracePeriodSeconds: o.Spec.TerminationGracePeriodSeconds, ResourceVersion: o.Metadata.ResourceVersion,
	}
	for _, c := range o.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "True" {
			p.ScheduledTime = ts(c.LastTransitionTime)
		}
	}
	for _, t := range o.Spec.Tolerations {
		p.Tolerations = append(p.Tolerations, &reprievev1.Toleration{
			Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect, TolerationSeconds: t.TolerationSeconds,
		})
	}
	for _, r := range o.Metadata.OwnerReferences {
		p.OwnerReferences = append(p.OwnerReferences, &reprievev1.OwnerReference{
			ApiVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, Uid: r.UID, Controller: r.Controller,
		})
	}
	return p
}

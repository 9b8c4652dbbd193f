package timeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// object has the fields of a v1 Node or Pod, or of a Lease, that a feed carries.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Message is what an API server's Status says.
	Message  string `json:"message"`
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		Labels            map[string]string `json:"labels"`
		Annotations       annotations       `json:"annotations"`
		CreationTimestamp instant           `json:"creationTimestamp"`
		DeletionTimestamp instant           `json:"deletionTimestamp"`
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
			Key       string  `json:"key"`
			Value     string  `json:"value"`
			Effect    string  `json:"effect"`
			TimeAdded instant `json:"timeAdded"`
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
		Priority                      *int32  `json:"priority"`
		PriorityClassName             string  `json:"priorityClassName"`
		TerminationGracePeriodSeconds *int64  `json:"terminationGracePeriodSeconds"`
		RenewTime                     instant `json:"renewTime"`
	} `json:"spec"`
	Status struct {
		Phase      string  `json:"phase"`
		StartTime  instant `json:"startTime"`
		Conditions []struct {
			Type               string  `json:"type"`
			Status             string  `json:"status"`
			Reason             string  `json:"reason"`
			LastHeartbeatTime  instant `json:"lastHeartbeatTime"`
			LastTransitionTime instant `json:"lastTransitionTime"`
		} `json:"conditions"`
	} `json:"status"`
}

// annotations keeps of an object's annotations, which can be large, the one that counts.
type annotations struct {
	Mirror *string `json:"kubernetes.io/config.mirror"`
}

// instant is a time of an object, read later so that an error can name its field.
type instant struct{ raw json.RawMessage }

// UnmarshalJSON implements [json.Unmarshaler].
func (i *instant) UnmarshalJSON(b []byte) error {
	i.raw = append(i.raw[:0], b...)
	return nil
}

// instants converts times and keeps the first error.
type instants struct{ err error }

func (c *instants) at(field string, i instant) *timestamppb.Timestamp {
	if i.raw == nil || string(i.raw) == "null" {
		return nil
	}
	var t time.Time
	err := json.Unmarshal(i.raw, &t)
	// The years are those that the contract takes.
	if err != nil || t.UTC().Year() < 1 || t.UTC().Year() > 9999 {
		if c.err == nil {
			c.err = fmt.Errorf("field %s: %.64s is not a time such as \"2026-01-01T00:00:00Z\"", field, i.raw)
		}
		return nil
	}
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// decodeObject reads the fields that a feed carries from one object. What is no
// object gives nil and an error that says what it is; a field of a wrong type
// gives the rest of the object and an error.
func decodeObject(raw json.RawMessage) (*object, error) {
	if what := jsonKind(raw); what != "an object" {
		return nil, errors.New(what + ", not an object")
	}
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return &o, fmt.Errorf("field %s: %s is not %s", wrong.Field, wrong.Value, goKind(wrong.Type))
		}
		return &o, err
	}
	return &o, nil
}

// jsonKind says what a valid JSON value is.
func jsonKind(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "text"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// goKind says in a reader's words what a field takes.
func goKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Int64:
		return "a whole number in range"
	case reflect.Slice:
		return "a list"
	default:
		return "an object"
	}
}

// called is how messages call an object.
func (o *object) called() string {
	name := o.Metadata.Name
	if o.Kind == "Pod" && name != "" {
		namespace := o.Metadata.Namespace
		if namespace == "" {
			namespace = "default"
		}
		name = namespace + "/" + name
	}
	if name == "" {
		return o.Kind + " without a name"
	}
	return o.Kind + " " + name
}

// leaseGroup is the API group of leases, nodeLeases the namespace of those of nodes.
const (
	leaseGroup = "coordination.k8s.io/"
	nodeLeases = "kube-node-lease"
)

// nodeLease reports whether the object is a node's Lease; other leases are those of
// leaders.
func (o *object) nodeLease() bool {
	return o.Kind == "Lease" && strings.HasPrefix(o.APIVersion, leaseGroup) && o.Metadata.Namespace == nodeLeases
}

// lease reads a node's Lease, whose name is the node's. known has the times seen so far.
func (o *object) lease(cluster string, known map[string]time.Time) (*Lease, error) {
	var c instants
	l := &Lease{Node: o.Metadata.Name, RenewTime: c.at("spec.renewTime", o.Spec.RenewTime)}
	key := cluster + "\x00" + l.Node
	if last, seen := known[key]; l.RenewTime != nil && !(seen && last.Equal(l.RenewTime.AsTime())) {
		l.Renewed = true
		known[key] = l.RenewTime.AsTime()
	}
	return l, c.err
}

func (o *object) node() (*reprievev1.Node, error) {
	var c instants
	n := &reprievev1.Node{
		Name: o.Metadata.Name, Uid: o.Metadata.UID, Labels: o.Metadata.Labels, Unschedulable: o.Spec.Unschedulable,
		CreationTime: c.at("metadata.creationTimestamp", o.Metadata.CreationTimestamp), ResourceVersion: o.Metadata.ResourceVersion,
	}
	for _, t := range o.Spec.Taints {
		n.Taints = append(n.Taints, &reprievev1.Taint{
			Key: t.Key, Value: t.Value, Effect: t.Effect, TimeAdded: c.at("spec.taints.timeAdded", t.TimeAdded),
		})
	}
	for _, s := range o.Status.Conditions {
		n.Conditions = append(n.Conditions, &reprievev1.NodeCondition{
			Type: s.Type, Status: s.Status, Reason: s.Reason,
			LastHeartbeatTime:  c.at("status.conditions.lastHeartbeatTime", s.LastHeartbeatTime),
			LastTransitionTime: c.at("status.conditions.lastTransitionTime", s.LastTransitionTime),
		})
	}
	return n, c.err
}

func (o *object) pod() (*reprievev1.Pod, error) {
	var c instants
	p := &reprievev1.Pod{
		Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Uid: o.Metadata.UID, NodeName: o.Spec.NodeName,
		Labels: o.Metadata.Labels, Phase: o.Status.Phase, Mirror: o.Metadata.Annotations.Mirror != nil,
		DeletionTime: c.at("metadata.deletionTimestamp", o.Metadata.DeletionTimestamp),
		CreationTime: c.at("metadata.creationTimestamp", o.Metadata.CreationTimestamp),
		StartTime:    c.at("status.startTime", o.Status.StartTime),
		Priority:     o.Spec.Priority, PriorityClassName: o.Spec.PriorityClassName,
		TerminationGracePeriodSeconds: o.Spec.TerminationGracePeriodSeconds, ResourceVersion: o.Metadata.ResourceVersion,
	}
	for _, s := range o.Status.Conditions {
		at := c.at("status.conditions.lastTransitionTime", s.LastTransitionTime)
		switch {
		case s.Status != "True":
		case s.Type == "PodScheduled":
			p.ScheduledTime = at
		case s.Type == "DisruptionTarget":
			p.DisruptionReason, p.DisruptionTime = s.Reason, at
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
	return p, c.err
}

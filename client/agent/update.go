package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// The reasons of conditions that the built-in controller sets for a kubelet that
// has fallen silent, and that never spoke (kubernetes pkg/controller/nodelifecycle).
const (
	statusUnknown      = "NodeStatusUnknown"
	statusNeverUpdated = "NodeStatusNeverUpdated"
)

// conflictTries is how often within one order a node is read again because
// somebody changed it between read and patch.
const conflictTries = 5

// updater carries out orders for nodes. Nothing is patched but what was read live
// a moment before, at the version that was read.
type updater struct {
	*evictor
	leases func() *leaseWatch
	notes  notes
}

// notes are what people read on a node and its pods.
type notes interface {
	// nodeChanged tells on the node.
	nodeChanged(o *reprievev1.UpdateNode, reason, message string)
	// podNotReady tells on a pod that its condition Ready was set False.
	podNotReady(p *corev1.Pod)
}

// update is an executor's handler of orders for nodes.
func (u *updater) update(ctx context.Context, t *client.Task) client.Result {
	var done []string
	for _, part := range []func(context.Context, *client.Task) (string, error){u.conditions, u.taints, u.pods} {
		did, err := "", ctx.Err()
		if err == nil {
			did, err = part(ctx, t)
		}
		if did != "" {
			done = append(done, did)
		}
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		r := u.result(ctx, err)
		if len(done) > 0 {
			r = halfDone(r)
		}
		r.Message = join(r.Message, strings.Join(done, "; "))
		return r
	}
	return client.Result{Outcome: reprievev1.Outcome_OUTCOME_APPLIED, Message: strings.Join(done, "; ")}
}

// halfDone is an order's answer when something of it was done before. RECALLED and
// STALE say that nothing was.
func halfDone(r client.Result) client.Result {
	switch r.Outcome {
	case reprievev1.Outcome_OUTCOME_RECALLED:
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: "recalled when this was done"}
	case reprievev1.Outcome_OUTCOME_STALE:
		r.Outcome = reprievev1.Outcome_OUTCOME_FAILED
	}
	return r
}

// live reads the node and holds it against what the order rests on.
func (u *updater) live(ctx context.Context, t *client.Task) (*corev1.Node, error) {
	o := t.Node
	n, err := u.nodes.get(ctx, o.GetName())
	switch {
	case apierrors.IsNotFound(err):
		return nil, answer(reprievev1.Outcome_OUTCOME_GONE, "node %s does not exist any more", o.GetName())
	case err != nil:
		return nil, fmt.Errorf("read node %s: %w", o.GetName(), err)
	case string(n.UID) != o.GetUid():
		return nil, answer(reprievev1.Outcome_OUTCOME_SUPERSEDED, "another node has the name: UID %s", n.UID)
	}
	return n, stands(o, n)
}

// stands reports as an answer what the node contradicts of the order's basis. A
// heartbeat of another time is a heartbeat, whatever that clock says.
func stands(o *reprievev1.UpdateNode, n *corev1.Node) error {
	status, c := readiness(n)
	was := corev1.ConditionStatus(o.GetBasis().GetReadyStatus())
	silenced := status == corev1.ConditionUnknown && slices.Contains(o.GetUnknownConditions(), string(corev1.NodeReady))
	switch {
	case silenced:
		return nil
	case status != was:
		return answer(reprievev1.Outcome_OUTCOME_STALE, "condition Ready is %s by now, the order rests on %s", word(status), word(was))
	case len(o.GetUnknownConditions()) == 0 || c == nil:
		return nil
	}
	if at := o.GetBasis().GetHeartbeatTime(); at == nil && !c.LastHeartbeatTime.IsZero() || at != nil && !at.AsTime().Equal(c.LastHeartbeatTime.Time) {
		return answer(reprievev1.Outcome_OUTCOME_STALE, "the node has sent a heartbeat at %s by its clock", c.LastHeartbeatTime.UTC().Format(time.RFC3339))
	}
	return nil
}

// readiness is the node's condition Ready; empty and nil without one.
func readiness(n *corev1.Node) (corev1.ConditionStatus, *corev1.NodeCondition) {
	c := nodeCondition(n, corev1.NodeReady)
	if c == nil {
		return "", nil
	}
	return c.Status, c
}

func nodeCondition(n *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// word is a condition's status for people.
func word(s corev1.ConditionStatus) string {
	if s == "" {
		return "absent"
	}
	return string(s)
}

// touch is act for a node: when its turn has come the order must still count.
func (u *updater) touch(ctx context.Context, t *client.Task, what string, do func(context.Context) error) error {
	return u.call(ctx, what, func(calling context.Context) error {
		if t.Expired() {
			return client.ErrExpired
		}
		return do(calling)
	})
}

// nodePatch is a change of a node; body is nil if nothing has to change.
type nodePatch struct {
	kind types.PatchType
	sub  []string
	body map[string]any
}

// patch changes the node at the version that edit was shown, and asks it again
// when somebody was faster. It returns the node as it was before; nil if nothing
// had to change.
func (u *updater) patch(ctx context.Context, t *client.Task, edit func(*corev1.Node) (nodePatch, error)) (*corev1.Node, error) {
	for try := 1; ; try++ {
		n, err := u.live(ctx, t)
		if err != nil {
			return nil, err
		}
		p, err := edit(n)
		if err != nil || p.body == nil {
			return nil, err
		}
		p.body["metadata"] = map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion}
		body, err := json.Marshal(p.body)
		if err != nil {
			return nil, fmt.Errorf("build the patch of node %s: %w", n.Name, err)
		}
		what := strings.Join(append([]string{"patch nodes"}, p.sub...), "/")
		err = u.touch(ctx, t, what, func(ctx context.Context) error {
			return u.core.Patch(p.kind).Resource("nodes").Name(n.Name).SubResource(p.sub...).Body(body).MaxRetries(0).Do(ctx).Error()
		})
		switch {
		case err == nil:
			return n, nil
		case apierrors.IsNotFound(err):
			return nil, answer(reprievev1.Outcome_OUTCOME_GONE, "node %s does not exist any more", n.Name)
		case !apierrors.IsConflict(err) || try == conflictTries:
			return nil, fmt.Errorf("%s %s: %w", what, n.Name, err)
		}
	}
}

// conditions sets conditions Unknown, unless the node's Lease shows that it lives.
func (u *updater) conditions(ctx context.Context, t *client.Task) (did string, err error) {
	o := t.Node
	if len(o.GetUnknownConditions()) == 0 {
		return "", nil
	}
	was, err := u.patch(ctx, t, func(n *corev1.Node) (nodePatch, error) {
		set := unknown(n, o.GetUnknownConditions(), u.clock.Now())
		if len(set) == 0 {
			return nodePatch{}, nil
		}
		// After the node was read and before it is changed: what the two reads show
		// is no older than the change.
		if err := u.silent(ctx, o); err != nil {
			return nodePatch{}, err
		}
		return nodePatch{types.StrategicMergePatchType, []string{"status"}, map[string]any{"status": map[string]any{"conditions": set}}}, nil
	})
	if was == nil {
		return "", err
	}
	if status, _ := readiness(was); status == corev1.ConditionTrue {
		u.notReady(o)
	}
	return "set " + strings.Join(o.GetUnknownConditions(), ", ") + " Unknown", nil
}

// notReady tells that the node has turned not ready.
func (u *updater) notReady(o *reprievev1.UpdateNode) {
	u.notes.nodeChanged(o, nodeNotReady, withReason("Node "+o.GetName()+" status is now: "+nodeNotReady, o.GetReason()))
}

// silent reports as an answer that the node's Lease, read live, is not the one
// that the order rests on.
func (u *updater) silent(ctx context.Context, o *reprievev1.UpdateNode) error {
	var basis time.Time
	if at := o.GetBasis().GetRenewTime(); at != nil {
		basis = at.AsTime()
	}
	silent := false
	err := u.call(ctx, "get leases", func(ctx context.Context) (err error) {
		silent, err = u.leases().unrenewed(ctx, o.GetName(), basis)
		return err
	})
	if err == nil && !silent {
		err = answer(reprievev1.Outcome_OUTCOME_STALE, "the node has renewed its Lease since")
	}
	return err
}

// unknown are the conditions that are not Unknown yet, as they are to be.
func unknown(n *corev1.Node, kinds []string, now time.Time) []corev1.NodeCondition {
	var set []corev1.NodeCondition
	for _, kind := range kinds {
		c := corev1.NodeCondition{
			Type: corev1.NodeConditionType(kind), Reason: statusNeverUpdated, LastHeartbeatTime: n.CreationTimestamp,
			Message: "Reprieve: the kubelet has never told of this condition",
		}
		if has := nodeCondition(n, c.Type); has != nil {
			if has.Status == corev1.ConditionUnknown {
				continue
			}
			c = *has
			c.Reason, c.Message = statusUnknown, "Reprieve: the kubelet has fallen silent"
		}
		c.Status, c.LastTransitionTime = corev1.ConditionUnknown, metav1.NewTime(now)
		set = append(set, c)
	}
	return set
}

// taints adds and removes the order's taints in one patch. Others stay as they
// were read, or the patch is refused.
func (u *updater) taints(ctx context.Context, t *client.Task) (did string, err error) {
	o := t.Node
	if len(o.GetAddTaints())+len(o.GetRemoveTaints()) == 0 {
		return "", nil
	}
	var added, removed []corev1.Taint
	was, err := u.patch(ctx, t, func(n *corev1.Node) (nodePatch, error) {
		var taints []corev1.Taint
		taints, added, removed = retainted(n.Spec.Taints, o, u.clock.Now())
		if len(added)+len(removed) == 0 {
			return nodePatch{}, nil
		}
		return nodePatch{types.MergePatchType, nil, map[string]any{"spec": map[string]any{"taints": taints}}}, nil
	})
	if was == nil {
		return "", err
	}
	var parts []string
	for _, list := range []struct {
		verb   string
		taints []corev1.Taint
	}{{"added", added}, {"removed", removed}} {
		for i := range list.taints {
			parts = append(parts, list.verb+" taint "+list.taints[i].ToString())
		}
	}
	did = strings.Join(parts, ", ")
	u.notes.nodeChanged(o, taintReason(added, removed), withReason("Node "+o.GetName()+": "+did, o.GetReason()))
	return did, nil
}

// retainted are a node's taints as the order wants them, and what that adds and
// removes. A taint is its key and effect.
func retainted(have []corev1.Taint, o *reprievev1.UpdateNode, now time.Time) (taints, added, removed []corev1.Taint) {
	taints = []corev1.Taint{}
	for i := range have {
		if names(o.GetRemoveTaints(), &have[i]) {
			removed = append(removed, have[i])
		} else {
			taints = append(taints, have[i])
		}
	}
	for _, w := range o.GetAddTaints() {
		want := corev1.Taint{Key: w.GetKey(), Value: w.GetValue(), Effect: corev1.TaintEffect(w.GetEffect()), TimeAdded: &metav1.Time{Time: now}}
		if !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.MatchTaint(&want) }) {
			taints, added = append(taints, want), append(added, want)
		}
	}
	return taints, added, removed
}

// names reports whether a taint of that key and effect is among those.
func names(taints []*reprievev1.Taint, t *corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(w *reprievev1.Taint) bool {
		return w.GetKey() == t.Key && w.GetEffect() == string(t.Effect)
	})
}

// pods sets the condition Ready of the node's pods False, so that Services drop
// them, as long as the node is not ready.
func (u *updater) pods(ctx context.Context, t *client.Task) (did string, err error) {
	o := t.Node
	if !o.GetMarkPodsNotReady() {
		return "", nil
	}
	all, err := u.podsOn(ctx, o.GetName())
	if err != nil {
		return "", err
	}
	if status, err := u.stillUnready(ctx, t); err != nil {
		return "", err
	} else if status == corev1.ConditionFalse && t.Attempt <= 1 {
		// Of one that is Unknown the change of its conditions has told.
		u.notReady(o)
	}
	marked := 0
	defer func() {
		if marked > 0 {
			did = fmt.Sprintf("set %d pods not ready", marked)
		}
	}()
	for i := range all {
		switch ok, err := u.markPod(ctx, t, &all[i]); {
		case err != nil:
			return "", err
		case ok:
			marked++
			u.notes.podNotReady(&all[i])
		}
	}
	return "", nil
}

// podsOn are the node's pods. API servers have them by node in memory, of any
// version: a pod that is not in there yet is not ready on a silent node.
func (u *updater) podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	var list corev1.PodList
	opts := metav1.ListOptions{ResourceVersion: "0", FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()}
	err := u.call(ctx, "list pods", func(ctx context.Context) error {
		return u.core.Get().Resource("pods").VersionedParams(&opts, scheme.ParameterCodec).MaxRetries(0).Do(ctx).Into(&list)
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	return list.Items, nil
}

// markPod sets a pod's condition Ready False if it is True, and reports whether it
// did. The pod is read again when it has changed since.
func (u *updater) markPod(ctx context.Context, t *client.Task, p *corev1.Pod) (bool, error) {
	pod := &reprievev1.EvictPod{Namespace: p.Namespace, Name: p.Name, Uid: string(p.UID)}
	for try := 1; ; try++ {
		if p.Spec.NodeName != t.Node.GetName() || !podReady(p) {
			return false, nil
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if _, err := u.stillUnready(ctx, t); err != nil {
			return false, err
		}
		body, err := json.Marshal(podUnready(p, u.clock.Now()))
		if err != nil {
			return false, fmt.Errorf("build the status patch: %w", err)
		}
		err = u.touch(ctx, t, "patch pods/status in "+p.Namespace, func(ctx context.Context) error {
			return u.pod(u.core.Patch(types.StrategicMergePatchType), pod).SubResource("status").Body(body).MaxRetries(0).Do(ctx).Error()
		})
		switch {
		case err == nil:
			return true, nil
		case apierrors.IsNotFound(err), changesUID(err):
			return false, nil // It has left.
		case !apierrors.IsConflict(err) || try == conflictTries:
			return false, fmt.Errorf("set pod %s/%s not ready: %w", p.Namespace, p.Name, err)
		}
		var now corev1.Pod
		err = u.call(ctx, "get pods in "+p.Namespace, func(ctx context.Context) error { return u.pod(u.core.Get(), pod).Do(ctx).Into(&now) })
		if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		*p = now
	}
}

// stillUnready looks at the node's condition Ready, at most once a second: once it
// is True the pods' readiness is the kubelet's.
func (u *updater) stillUnready(ctx context.Context, t *client.Task) (corev1.ConditionStatus, error) {
	read, err := u.nodes.look(ctx, t.Node.GetName(), nodeFresh)
	switch {
	case apierrors.IsNotFound(err):
		return "", answer(reprievev1.Outcome_OUTCOME_GONE, "node %s does not exist any more", t.Node.GetName())
	case err != nil:
		return "", fmt.Errorf("read node %s: %w", t.Node.GetName(), err)
	case string(read.uid) != t.Node.GetUid():
		return "", answer(reprievev1.Outcome_OUTCOME_SUPERSEDED, "another node has the name: UID %s", read.uid)
	case read.ready == corev1.ConditionTrue:
		return "", answer(reprievev1.Outcome_OUTCOME_STALE, "condition Ready is True by now")
	}
	return read.ready, nil
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// podUnready is the status patch of a pod at the version that was read. It leaves
// the kubelet's reason and message there, as the built-in controller does.
func podUnready(p *corev1.Pod, now time.Time) any {
	return map[string]any{
		"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion},
		"status": map[string]any{"conditions": []map[string]any{{
			"type": corev1.PodReady, "status": corev1.ConditionFalse, "lastTransitionTime": metav1.NewTime(now),
		}}},
	}
}

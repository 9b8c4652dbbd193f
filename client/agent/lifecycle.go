package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// controllerManagers selects the pods of kube-controller-manager as kubeadm and
// those after it label them. Where the control plane is hidden there are none.
const controllerManagers = "component=kube-controller-manager"

// lifecycleLook looks for the node lifecycle controller of kube-controller-manager.
// Its calls do not overlap.
type lifecycleLook struct {
	core typedcorev1.PodsGetter
	// timeout is how long the pods may take to be listed.
	timeout time.Duration
	// last is what was found last.
	last string
}

// controller names a pod of kube-controller-manager that runs the node lifecycle
// controller, if the cluster shows one; else it is empty. That the pods cannot be
// listed says nothing: what was known stays.
func (l *lifecycleLook) controller(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	pods, err := l.core.Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: controllerManagers})
	if err != nil {
		return l.last
	}
	l.last = ""
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp == nil && runsLifecycle(p) {
			l.last = "pod " + p.Namespace + "/" + p.Name + " runs the node-lifecycle-controller of kube-controller-manager: its --controllers does not switch it off"
			break
		}
	}
	return l.last
}

// runsLifecycle reads a pod's command line as kube-controller-manager does: a
// controller is on if it is named, or if all are and it is not taken out.
func runsLifecycle(p *corev1.Pod) bool {
	controllers := []string{"*"}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		args := slices.Concat(c.Command, c.Args)
		for j, arg := range args {
			if list, ok := strings.CutPrefix(arg, "--controllers="); ok {
				controllers = strings.Split(list, ",")
			} else if arg == "--controllers" && j+1 < len(args) {
				controllers = strings.Split(args[j+1], ",")
			}
		}
	}
	on := false
	for _, name := range controllers {
		switch strings.TrimSpace(name) {
		// The second is the name before Kubernetes 1.28, which still counts.
		case "node-lifecycle-controller", "nodelifecycle":
			return true
		case "-node-lifecycle-controller", "-nodelifecycle":
			return false
		case "*":
			on = true
		}
	}
	return on
}

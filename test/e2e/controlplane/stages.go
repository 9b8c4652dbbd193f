package controlplane

import (
	"fmt"
	"strings"
)

// How kwok plays a kubelet: a node becomes ready, a pod bound to it runs, a deleted pod is removed.
const stages = `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      capacity: {cpu: "64", memory: 256Gi, pods: "5000"}
      allocatable: {cpu: "64", memory: 256Gi, pods: "5000"}
      conditions:
      {{ range NodeConditions }}
      - type: {{ .type }}
        status: {{ .status | Quote }}
        reason: {{ .reason | Quote }}
        message: {{ .message | Quote }}
        lastHeartbeatTime: {{ $now | Quote }}
        lastTransitionTime: {{ $now | Quote }}
      {{ end }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-runs}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      phase: Running
      startTime: {{ $now | Quote }}
      conditions:
      {{ range $type := list "PodScheduled" "Initialized" "ContainersReady" "Ready" }}
      - {type: {{ $type }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
      {{ end }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ends}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
  next:
    finalizers: {empty: true}
    delete: true
`

// heartbeat renews a ready node's status after so many milliseconds, and so again and again.
const heartbeat = `---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-heartbeat}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: In, values: ["True"]}
  delay: {durationMilliseconds: %d}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      - {type: Ready, status: "True", reason: KubeletReady, lastHeartbeatTime: {{ $now | Quote }}}
`

// settings are kwok's own.
const settings = `---
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  manageNodesWithLabelSelector: %s=%s
  nodeLeaseDurationSeconds: 0
  nodePlayStageParallelism: 4
  podPlayStageParallelism: 8
  podsOnNodeSyncParallelism: 4
  enablePodsOnNodeSyncListPager: false
  enablePodsOnNodeSyncStreamWatch: false
`

func kwokConfig(k Kubelets) string {
	var b strings.Builder
	b.WriteString(stages)
	if k.Heartbeat > 0 {
		fmt.Fprintf(&b, heartbeat, k.Heartbeat.Milliseconds())
	}
	fmt.Fprintf(&b, settings, KubeletLabel, KubeletValue)
	return b.String()
}

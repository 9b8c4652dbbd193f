package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/reprieve-dev/reprieve/client/timeline"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const samplePods = `{"kind":"List","apiVersion":"v1","items":[
{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"a","name":"p","uid":"u1","labels":{"app":"x"},"creationTimestamp":"2026-01-01T00:00:01Z",
 "deletionTimestamp":"2026-01-01T00:00:09Z","annotations":{"kubernetes.io/config.mirror":"abc","other":"y"},
 "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"u9","controller":true}]},
 "spec":{"nodeName":"n","priority":7,"priorityClassName":"high","terminationGracePeriodSeconds":30,"containers":[{"name":"c","image":"i"}],
 "tolerations":[{"key":"k","operator":"Equal","value":"v","effect":"NoExecute","tolerationSeconds":5},{"operator":"Exists"}]},
 "status":{"phase":"Running","startTime":"2026-01-01T00:00:02Z","podIP":"10.0.0.1","conditions":[
 {"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-01T00:00:03Z"},
 {"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:04Z"},
 {"type":"DisruptionTarget","status":"True","reason":"DeletionByTaintManager","lastTransitionTime":"2026-01-01T00:00:05Z"}]}},
{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"a","name":"q","uid":"u2"},"spec":{"nodeName":"n"},
 "status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","lastTransitionTime":"2026-01-01T00:00:03Z"},
 {"type":"DisruptionTarget","status":"False","reason":"x"}]}},
{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","uid":"u3","labels":{"zone":"z"},"creationTimestamp":"2026-01-01T00:00:00Z"},
 "spec":{"unschedulable":true,"podCIDR":"10.0.0.0/24","taints":[{"key":"k","value":"v","effect":"NoExecute","timeAdded":"2026-01-01T00:00:06Z"},{"key":"s","effect":"NoSchedule"}]},
 "status":{"capacity":{"cpu":"4"},"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown","lastHeartbeatTime":"2026-01-01T00:00:07Z","lastTransitionTime":"2026-01-01T00:00:08Z"}]}}
]}`

// The agent tells of an object what the reader of kubectl's output tells of it,
// also after strip.
func TestConvertedAsReadFromFiles(t *testing.T) {
	var want []*reprievev1.Event
	r := timeline.NewReader(bytes.NewReader([]byte(samplePods)), "sample", timeline.Options{})
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if ev := e.Event(); ev != nil {
			want = append(want, ev)
		}
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal([]byte(samplePods), &list); err != nil {
		t.Fatal(err)
	}
	if len(want) != len(list.Items) {
		t.Fatalf("the reader found %d objects of %d", len(want), len(list.Items))
	}
	for i, raw := range list.Items {
		var kind struct{ Kind string }
		if err := json.Unmarshal(raw, &kind); err != nil {
			t.Fatal(err)
		}
		obj := map[string]runtime.Object{"Pod": &corev1.Pod{}, "Node": &corev1.Node{}}[kind.Kind]
		if err := json.Unmarshal(raw, obj); err != nil {
			t.Fatal(err)
		}
		strip(obj)
		got, err := event(obj, reprievev1.Event_EVENT_TYPE_UPSERT)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, want[i]) {
			t.Errorf("object %d:\n got %v\nwant %v", i, got, want[i])
		}
	}
}

package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func silent() teller { return newReporter(slog.New(slog.DiscardHandler), newMetrics(nil)) }

// Objects that an API server takes and the contract does not keep no cluster from
// being fed: they are cut or left out, with one warning.
func TestUnfitObjects(t *testing.T) {
	var log strings.Builder
	m := newMetrics(nil)
	s := newState(newReporter(slog.New(slog.NewTextHandler(&log, nil)), m))
	var pods []any
	for i := range 3 {
		p := testPod(fmt.Sprint("big", i), "n")
		for k := range 1025 {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: fmt.Sprint("k", k), Operator: corev1.TolerationOpExists})
		}
		p.Status.Phase = corev1.PodPhase(strings.Repeat("p", 300))
		pods = append(pods, p)
	}
	nameless := testPod("nameless", "n")
	nameless.UID = ""
	odd := testPod("odd", "n")
	odd.Labels = map[string]string{"a": "\xff"}
	if err := s.nodes.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.pods.Replace(append(pods, nameless), ""); err != nil {
		t.Fatal(err)
	}
	if err := s.pods.Add(odd); err != nil {
		t.Fatal(err)
	}
	if err := s.pods.Add(nameless); err != nil {
		t.Fatal(err)
	}
	all, ok := s.list()
	if !ok || len(all) != 4 {
		t.Fatalf("%d events, listed is %v", len(all), ok)
	}
	for _, raw := range all {
		var e reprievev1.Event
		if err := proto.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		if err := protovalidate.Validate(&e); err != nil {
			t.Errorf("the service refuses %s: %v", e.GetPod().GetName(), err)
		}
	}
	for _, gone := range []*corev1.Pod{nameless, odd} {
		if err := s.pods.Delete(gone); err != nil {
			t.Fatal(err)
		}
	}
	if events, _, _ := s.take(); len(events) != 1 || events[0].GetPod().GetName() != "odd" || protovalidate.Validate(events[0]) != nil {
		t.Errorf("told of %v", events)
	}
	cut, left := testutil.ToFloat64(m.unfit.WithLabelValues("pods", doneCut)), testutil.ToFloat64(m.unfit.WithLabelValues("pods", doneLeftOut))
	if cut != 4 || left != 2 || strings.Count(log.String(), "WARN") != 3 {
		t.Errorf("%g cut, %g left out, log:\n%s", cut, left, log.String())
	}
}

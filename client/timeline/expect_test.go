package timeline_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/client/timeline"
)

func TestCompare(t *testing.T) {
	want, err := timeline.ReadExpectation(strings.NewReader(`{"name":"n","why":"w","until":"100s","evict":[
		{"pod":"a/p","uid":"u","at":"10s","tolerance":"5s"},
		{"pod":"a/p","uid":"u","at":"8s","tolerance":"1s"},
		{"cluster":"east","pod":"a/q","uid":"v","at":"1m10s"}]}`), "in")
	if err != nil {
		t.Fatal(err)
	}
	sent := func(cluster, pod, uid string, at time.Duration) timeline.SentOrder {
		return timeline.SentOrder{Cluster: cluster, Namespace: "a", Pod: pod, UID: uid, At: at}
	}
	met := []timeline.SentOrder{
		sent("east", "q", "v", 70*time.Second), sent("default", "p", "u", 14*time.Second), sent("default", "p", "u", 8*time.Second),
		sent("default", "late", "l", 101*time.Second), // After the end of the look.
	}
	if d := want.Compare(met); d != nil {
		t.Fatalf("all is as expected, and yet: %q", d)
	}
	got := want.Compare([]timeline.SentOrder{
		sent("default", "q", "v", 70*time.Second), sent("default", "p", "other", 8*time.Second),
		sent("default", "p", "u", 15001*time.Millisecond), sent("default", "p", "u", 12*time.Second),
	})
	diff := []string{
		"+ at 8s: default a/p (uid other) was ordered",
		"+ at 15.001s: default a/p (uid u) was ordered",
		"+ at 1m10s: default a/q (uid v) was ordered",
		"- at 8s: default a/p (uid u) was expected, within 1s",
		"- at 1m10s: east a/q (uid v) was expected, within 0s",
	}
	if d := cmp.Diff(diff, got); d != "" {
		t.Fatalf("differences (-want +got):\n%s", d)
	}
}

func TestCompareHealth(t *testing.T) {
	want, err := timeline.ReadExpectation(strings.NewReader(`{"name":"n","until":"100s","health":[
		{"node":"n1","event":"unknown","at":"53s","tolerance":"2s"},
		{"node":"n1","event":"tainted","taint":"a:NoExecute","at":"53s","tolerance":"2s"},
		{"event":"blind","cluster":"east","at":"60s"}]}`), "in")
	if err != nil {
		t.Fatal(err)
	}
	seen := func(cluster, node, event, taint string, at time.Duration) timeline.SeenHealth {
		return timeline.SeenHealth{Cluster: cluster, Node: node, Event: event, Taint: taint, At: at}
	}
	met := []timeline.SeenHealth{
		seen("default", "n1", "unknown", "", 51*time.Second), seen("default", "n1", "tainted", "a:NoExecute", 55*time.Second),
		seen("east", "", "blind", "", time.Minute), seen("default", "n1", "ready", "", 101*time.Second),
	}
	if d := want.CompareHealth(met); d != nil {
		t.Fatalf("all is as expected, and yet: %q", d)
	}
	got := want.CompareHealth([]timeline.SeenHealth{
		seen("default", "n1", "unknown", "", 50*time.Second), seen("default", "n1", "tainted", "a:NoSchedule", 53*time.Second), seen("default", "", "blind", "", time.Minute),
	})
	diff := []string{
		"+ at 50s: default n1 unknown", "+ at 53s: default n1 tainted a:NoSchedule", "+ at 1m0s: default blind",
		"- at 53s: default n1 unknown was expected, within 2s", "- at 53s: default n1 tainted a:NoExecute was expected, within 2s", "- at 1m0s: east blind was expected, within 0s",
	}
	if d := cmp.Diff(diff, got); d != "" {
		t.Fatalf("differences (-want +got):\n%s", d)
	}
	if d := (&timeline.Expectation{Until: timeline.Duration(time.Hour)}).CompareHealth(met); d != nil {
		t.Errorf("nothing is expected of node health, and yet: %q", d)
	}
}

func TestExpectationErrors(t *testing.T) {
	for in, want := range map[string]string{
		``:                                       "in: not an expectation: EOF; it has name, why, until, evict and health",
		`[]`:                                     "in: not an expectation: json: cannot unmarshal array into Go value of type timeline.Expectation; it has name, why, until, evict and health",
		`{"untill":"1s"}`:                        `in: not an expectation: json: unknown field "untill"; it has name, why, until, evict and health`,
		`{"until":5}`:                            `in: not an expectation: 5 is not a duration such as "63.5s"; it has name, why, until, evict and health`,
		`{"until":"5"}`:                          `in: not an expectation: "5" is not a duration such as "63.5s"; it has name, why, until, evict and health`,
		`{}`:                                     `in: not an expectation: until is missing or not above zero; until says how long to look, such as "700s"`,
		`{"until":"1s"} {}`:                      "in: not an expectation: there is something after its end; one file has one expectation",
		`{"until":"1s","health":[{"node":"n"}]}`: `in: not an expectation: health 1: event is missing`,
		`{"until":"1s","health":[{"event":"ready","at":"-1s"}]}`:                       `in: not an expectation: health 1: at and tolerance are not below zero`,
		`{"until":"1s","health":[{"event":"ready","at":"2s"}]}`:                        `in: not an expectation: health 1: at 2s is after until 1s`,
		`{"until":"1s","evict":[{}]}`:                                                  `in: not an expectation: evict 1: pod "" is not namespace/name`,
		`{"until":"1s","evict":[{"pod":"a/b","uid":"u","at":"2s"}]}`:                   "in: not an expectation: evict 1: at 2s is after until 1s",
		`{"until":"1s","evict":[{"pod":"a/b","uid":"u","at":"1s","tolerance":"-1s"}]}`: "in: not an expectation: evict 1: at and tolerance are not below zero",
	} {
		if _, err := timeline.ReadExpectation(strings.NewReader(in), "in"); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", in, err, want)
		}
	}
}

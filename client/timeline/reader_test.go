package timeline_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/client/timeline"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nodeJSON = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","uid":"u-n1"},"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`
	podJSON  = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default","uid":"u-p"},"spec":{"nodeName":"n1"},"status":{"phase":"Running"}}`
)

func drain(r *timeline.Reader) ([]timeline.Entry, error) {
	var out []timeline.Entry
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, e)
	}
}

func readAll(t *testing.T, in string, o timeline.Options) ([]timeline.Entry, error) {
	t.Helper()
	got, err := drain(timeline.NewReader(strings.NewReader(in), "in", o))
	// The input's pieces must not matter.
	again, err2 := drain(timeline.NewReader(iotest.OneByteReader(strings.NewReader(in)), "in", o))
	if d := cmp.Diff(got, again, protocmp.Transform()); d != "" || fmt.Sprint(err) != fmt.Sprint(err2) {
		t.Fatalf("read byte by byte it differs (%v, then %v):\n%s", err, err2, d)
	}
	return got, err
}

// words writes entries as "TYPE name", "TYPE namespace/name" or their control.
func words(entries []timeline.Entry) []string {
	var out []string
	for _, e := range entries {
		switch {
		case e.Control != nil:
			out = append(out, string(e.Control.Kind))
		case e.Node != nil:
			out = append(out, string(e.Type)+" "+e.Node.GetName())
		case e.Pod != nil:
			out = append(out, string(e.Type)+" "+e.Pod.GetNamespace()+"/"+e.Pod.GetName())
		default:
			out = append(out, string(e.Type))
		}
	}
	return out
}

func TestFormats(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want []string
	}{
		"timeline":             {`{"at":"0s","type":"ADDED","object":` + nodeJSON + "}\n" + `{"type":"MODIFIED","object":` + podJSON + `}`, []string{"ADDED n1", "MODIFIED default/p"}},
		"watch stream":         {`{"type":"ADDED","object":` + nodeJSON + `}{"type":"DELETED",` + "\n" + `"object":` + podJSON + `}`, []string{"ADDED n1", "DELETED default/p"}},
		"bookmark":             {`{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"}}}`, []string{"BOOKMARK"}},
		"v1 List":              {`{"apiVersion":"v1","items":[` + nodeJSON + `,` + podJSON + `],"kind":"List"}`, []string{"ADDED n1", "ADDED default/p"}},
		"items null":           {`{"apiVersion":"v1","items":null,"kind":"PodList"}`, nil},
		"no items":             {`{"apiVersion":"v1","items":[],"kind":"List"}`, nil},
		"typed list":           {`{"items":[{"metadata":{"name":"n","uid":"1"}},{"metadata":{"name":"m","uid":"2"}}],"kind":"NodeList"}`, []string{"ADDED n", "ADDED m"}},
		"typed list, kind 1st": {`{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"p","uid":"1"}}]}`, []string{"ADDED default/p"}},
		"foreign typed list":   {`{"items":[{"metadata":{"name":"cluster"}}],"kind":"NodeList","apiVersion":"config.openshift.io/v1"}`, nil},
		"plain object":         {podJSON, []string{"ADDED default/p"}},
		"objects in a row":     {podJSON + nodeJSON + "\n\n" + `{"kind":"List","items":[]}`, []string{"ADDED default/p", "ADDED n1"}},
		"other kinds":          {`{"kind":"List","items":[{"kind":"ConfigMap","metadata":{"name":"c"}},{"kind":"X","spec":[],"status":7},` + podJSON + `]}`, []string{"ADDED default/p"}},
		"a kind with a type":   {`{"kind":"Secret","apiVersion":"v1","type":"Opaque","metadata":{"name":"s"}}` + podJSON, []string{"ADDED default/p"}},
		"a foreign Node":       {`{"kind":"Node","apiVersion":"config.openshift.io/v1","metadata":{"name":"cluster"}}` + podJSON, []string{"ADDED default/p"}},
		"byte order mark":      {"\xef\xbb\xbf" + podJSON, []string{"ADDED default/p"}},
		"taint, no effect":     {`{"kind":"Node","metadata":{"name":"n","uid":"1"},"spec":{"taints":[{"key":"x"}]}}`, []string{"ADDED n"}},
		"YAML list":            {"apiVersion: v1\nkind: List\nitems:\n- kind: Node\n  metadata: {name: n, uid: a}\n- kind: Pod\n  metadata: {name: p, uid: b}\n", []string{"ADDED n", "ADDED default/p"}},
		"YAML items null":      {"kind: PodList\nitems: null\n", nil},
		"YAML typed list":      {"kind: NodeList\nitems:\n- metadata: {name: n, uid: a}\n", []string{"ADDED n"}},
		"YAML documents":       {"# a\n%YAML 1.1\n---\nkind: Node\nmetadata: {name: n, uid: a}\n--- # next\nkind: Pod\nmetadata: {name: p, uid: b}\n...\n---\n", []string{"ADDED n", "ADDED default/p"}},
		"YAML, Windows lines":  {"kind: Node\r\nmetadata: {name: n, uid: a}\r\n---\r\nkind: Pod\r\nmetadata: {name: p, uid: b}", []string{"ADDED n", "ADDED default/p"}},
		"YAML watch":           {"object: {kind: Node, metadata: {name: n, uid: a}}\ntype: ADDED\n---\nobject: {kind: Node, metadata: {name: n, uid: a}}\ntype: MODIFIED\n", []string{"ADDED n", "MODIFIED n"}},
		"YAML, indented":       {"\n  kind: Pod\n  metadata: {name: p, uid: a}\n", []string{"ADDED default/p"}},
		"YAML, other keys":     {"kind: Pod\nmetadata: {name: p, uid: a, labels: {1: a, true: b}}\n", []string{"ADDED default/p"}},
		"YAML times":           {"kind: Pod\nmetadata: {name: p, uid: b, creationTimestamp: 2024-01-02T03:04:05Z, deletionTimestamp: null}\n", []string{"ADDED default/p"}},
		"controls":             {`{"at":"1m3.5s","control":"restart","down":"10s"}{"control":"feed-lost","cluster":"east"}{"control":"pause"}{"control":"resume"}{"control":"synced"}`, []string{"restart", "feed-lost", "pause", "resume", "synced"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readAll(t, tc.in, timeline.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, words(got)); d != "" {
				t.Fatalf("entries (-want +got):\n%s", d)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	line := func(s string) string { return `{"at":"0s","control":"pause"}` + "\n" + s }
	pod := func(s string) string { return `{"kind":"Pod","metadata":{"name":"p","uid":"u"},` + s + `}` }
	for name, tc := range map[string]struct{ in, want string }{
		"truncated line":      {line(`{"at":"1s","type":"ADD`), "in:2: the JSON ends in the middle of an object; the input was cut off; write it again"},
		"truncated list":      {`{"kind":"List","items":[` + podJSON + `,`, "in:1: the JSON ends in the middle of an object; the input was cut off; write it again"},
		"line break in text":  {line(`{"at":"1s","type":"ADD` + "\n" + nodeJSON), `in:2: not JSON: invalid character '\n' in string literal`},
		"YAML with a tab":     {"kind: Pod\nmetadata:\n\tname: p\n", "in: document 1: not YAML: line 3: found character that cannot start any token; YAML is indented with spaces, never with tabs"},
		"tab in document 2":   {"kind: Pod\nmetadata: {name: p, uid: a}\n---\nkind: Pod\nmetadata:\n\tname: p\n", "in: document 2: not YAML: line 6: found character that cannot start any token; YAML is indented with spaces, never with tabs"},
		"YAML key twice":      {"kind: Pod\nkind: Node\n", `in: document 1: not YAML: line 2: mapping key "kind" already defined at line 1`},
		"YAML, then more":     {"'kind'\nmore", "in: document 1: not YAML: line 1: did not find expected <document start>"},
		"YAML, no number":     {"kind: Pod\nmetadata: {name: p, uid: a, labels: {a: .nan}}\n", "in: document 1: not YAML: json: unsupported value: NaN"},
		"YAML items":          {"kind: List\nitems: 5\n", "in: document 1: items is not a list"},
		"document 2 wrong":    {"kind: Pod\nmetadata: {name: p, uid: a}\n---\n- 1\n", "in: document 2: not a Kubernetes object; a document must have apiVersion, kind and metadata, as kubectl get -o yaml writes them"},
		"plain text":          {"hello there", "in: document 1: not a Kubernetes object; a document must have apiVersion, kind and metadata, as kubectl get -o yaml writes them"},
		"a kubectl table":     {"NAME   STATUS   ROLES\nn1     Ready    <none>\n", "in: document 1: not a Kubernetes object; a document must have apiVersion, kind and metadata, as kubectl get -o yaml writes them"},
		"Ruby hash":           {`{"kind"=>"Pod"}`, "in:1: not JSON: expected colon after object key; this looks like a Ruby hash; write the objects with kubectl get -o json"},
		"Ruby hash, symbols":  {`{:kind=>"Pod"}`, "in:1: not JSON: invalid character ':'; this looks like a Ruby hash; write the objects with kubectl get -o json"},
		"Ruby hash inside":    {`{"kind":"List","items":[{"kind" => "Pod"}]}`, "in:1: not JSON: invalid character '=' after object key; this looks like a Ruby hash; write the objects with kubectl get -o json"},
		"no colon":            {`{"kind" 1}`, "in:1: not JSON: expected colon after object key"},
		"Items in capitals":   {`{"kind":"List","Items":[]}`, "in:1: the list has Items in capitals, as old versions of kubectl wrote it; write it again with a current kubectl"},
		"Items, no kind":      {`{"Items":[]}`, "in:1: the list has Items in capitals, as old versions of kubectl wrote it; write it again with a current kubectl"},
		"items twice":         {`{"kind":"List","items":[],"items":[]}`, `in:1: field "items" is there twice`},
		"kind twice":          {`{"kind":"Pod","kind":"Node"}`, `in:1: field "kind" is there twice`},
		"items a number":      {`{"kind":"List","items":5}`, "in:1: items is not a list"},
		"list without items":  {`{"kind":"PodList"}`, "in:1: PodList has no items"},
		"list of numbers":     {"{\n \"kind\":\"List\",\n \"items\":[\n" + podJSON + ",\n5]}", "in:5: item 2 of the list is a number, not an object"},
		"list with a null":    {`{"kind":"PodList","items":[null]}`, "in:1: item 1 of the list is null, not an object"},
		"item without kind":   {`{"kind":"List","items":[{"metadata":{}}]}`, "in:1: not a Kubernetes object: an item has no kind, and its list does not tell"},
		"items of no list":    {`{"items":[],"a":1}`, `in:1: not a Kubernetes list: it has items, but kind is ""; the kind of a list ends in List`},
		"kind a number":       {`{"kind":5}`, "in:1: not a Kubernetes object: kind is a number, not text"},
		"not an object":       {"[1]", "in:1: not a Kubernetes object: it begins with [; an object begins with {"},
		"then not an object":  {podJSON + "\n7", "in:2: not a Kubernetes object: it begins with 7; an object begins with {"},
		"no kind":             {`{"metadata":{"name":"p"}}`, "in:1: not a Kubernetes object: it has no kind; kubectl get -o json writes objects that have one"},
		"a Status":            {`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"pods is forbidden"}`, "in:1: this is an error of the API server, not an object: pods is forbidden"},
		"line of an object":   {"{\"kind\":\"List\",\"items\":[\n\n{\n\"kind\":\"Pod\",\n\"metadata\":{}\n}\n]}", "in:3: Pod without metadata.name"},
		"no uid":              {`{"kind":"Pod","metadata":{"name":"p"}}`, "in:1: Pod default/p has no metadata.uid; a UID is what tells a pod from its replacement; feed objects as the API server has them"},
		"one uid":             {podJSON + "\n" + strings.Replace(podJSON, `"p"`, `"q"`, 1), "in:2: UID u-p is Pod default/p and Pod default/q; a UID has one name for ever; the input mixes clusters or was edited"},
		"name too long":       {`{"kind":"Node","metadata":{"name":"` + strings.Repeat("n", 254) + `"}}`, "in:1: metadata.name of a Node has 254 characters; 253 are allowed"},
		"namespace too long":  {`{"kind":"Pod","metadata":{"name":"p","namespace":"` + strings.Repeat("n", 64) + `"}}`, "in:1: metadata.namespace of a Pod has 64 characters; 63 are allowed"},
		"uid too long":        {`{"kind":"Node","metadata":{"name":"n","uid":"` + strings.Repeat("n", 129) + `"}}`, "in:1: metadata.uid of Node n has 129 characters; 128 are allowed"},
		"name a number":       {`{"kind":"Pod","metadata":{"name":7}}`, "in:1: Pod without a name: field metadata.name: number is not text"},
		"seconds as text":     {pod(`"spec":{"tolerations":[{"tolerationSeconds":"30"}]}`), "in:1: Pod default/p: field spec.tolerations.tolerationSeconds: string is not a whole number in range"},
		"taints an object":    {`{"kind":"Node","metadata":{"name":"n","uid":"u"},"spec":{"taints":{}}}`, "in:1: Node n: field spec.taints: object is not a list"},
		"spec a list":         {pod(`"spec":[]`), "in:1: Pod default/p: field spec: array is not an object"},
		"unschedulable text":  {`{"kind":"Node","metadata":{"name":"n","uid":"u"},"spec":{"unschedulable":"yes"}}`, "in:1: Node n: field spec.unschedulable: string is not true or false"},
		"bad time":            {pod(`"status":{"startTime":"yesterday"}`), `in:1: Pod default/p: field status.startTime: "yesterday" is not a time such as "2026-01-01T00:00:00Z"`},
		"time out of range":   {`{"kind":"Node","metadata":{"name":"n","uid":"u"},"spec":{"taints":[{"key":"a","timeAdded":"0000-01-01T00:00:00Z"}]}}`, `in:1: Node n: field spec.taints.timeAdded: "0000-01-01T00:00:00Z" is not a time such as "2026-01-01T00:00:00Z"`},
		"at goes back":        {`{"at":"5s","control":"pause"}` + "\n" + `{"at":"4s","control":"resume"}`, "in:2: at goes back from 5s to 4s; a timeline's lines are in the order of time"},
		"at without unit":     {`{"at":"5","control":"pause"}`, `in:1: at: "5" is not a duration from the start, such as 63.5s or 1m3.5s`},
		"at below zero":       {`{"at":"-5s","control":"pause"}`, `in:1: at: "-5s" is not a duration from the start, such as 63.5s or 1m3.5s`},
		"at a number":         {`{"at":5,"control":"pause"}`, `in:1: at is a number, not text; write a duration such as "63.5s"`},
		"at alone":            {`{"at":"5s"}`, "in:1: the line has neither type and object nor control"},
		"cluster":             {`{"cluster":"A B","control":"pause"}`, `in:1: cluster "A B" is not a DNS label; a cluster's name has a-z, 0-9 and - and at most 63 characters`},
		"cluster a number":    {`{"cluster":1,"control":"pause"}`, "in:1: cluster is a number, not text"},
		"unknown control":     {`{"control":"stop"}`, `in:1: unknown control "stop"; controls are synced, restart, feed-lost, pause, resume, policy, executor, renew`},
		"control null":        {`{"control":null}`, "in:1: control is null, not text"},
		"control and object":  {`{"control":"pause","type":"ADDED","object":{}}`, `in:1: control pause does not take field "object"`},
		"event with down":     {`{"type":"ADDED","object":` + podJSON + `,"down":"1s"}`, `in:1: an event does not take field "down"`},
		"down":                {`{"control":"restart","down":"soon"}`, `in:1: control restart: down: "soon" is not a duration from the start, such as 63.5s or 1m3.5s`},
		"unknown type":        {`{"type":"CHANGED","object":` + podJSON + `}`, `in:1: unknown type "CHANGED"; type is ADDED, MODIFIED, DELETED or BOOKMARK`},
		"no type":             {`{"object":` + podJSON + `}`, "in:1: object without type; type is ADDED, MODIFIED, DELETED or BOOKMARK"},
		"no object":           {`{"type":"ADDED"}`, "in:1: type ADDED without object"},
		"object a list":       {`{"type":"ADDED","object":[]}`, "in:1: not a Kubernetes object: object is a list, not an object"},
		"object without kind": {`{"type":"ADDED","object":{}}`, "in:1: not a Kubernetes object: object has no kind"},
		"watch error":         {`{"type":"ERROR","object":{"kind":"Status","message":"too old"}}`, `in:1: the watch ended with an error: too old; start the watch again`},
		"watch error, mute":   {`{"type":"ERROR","object":5}`, `in:1: the watch ended with an error: it does not say which; start the watch again`},
		"unknown field":       {`{"at":"1s","contrl":"pause"}`, `in:1: unknown field "contrl"; a timeline line has at, cluster, type, object, control, down, policy, pod, node, outcome, nodes, every, until`},
		"pod":                 {`{"control":"executor","pod":"p","outcome":"GONE"}`, `in:1: control executor: pod "p" is not namespace/name`},
		"pod, two slashes":    {`{"control":"executor","pod":"a/b/c","outcome":"GONE"}`, `in:1: control executor: pod "a/b/c" is not namespace/name`},
		"renew":               {`{"control":"renew","nodes":[],"until":"1m"}`, `in:1: control renew: nodes is not a list of nodes' names`},
		"renew, no end":       {`{"control":"renew","nodes":["n"]}`, `in:1: control renew: until: "" is not a duration from the start, such as 63.5s or 1m3.5s`},
		"renew, ends early":   {`{"at":"2m","control":"renew","nodes":["n"],"until":"1m"}`, `in:1: control renew: until 1m0s is before 2m0s, when it begins`},
		"renew, too often":    {`{"control":"renew","nodes":["n"],"every":"0s","until":"1m"}`, `in:1: control renew: every 0s is less than 100ms`},
		"renew, too many":     {`{"control":"renew","nodes":["n"],"every":"1s","until":"1000000s"}`, `in:1: control renew: it stands for more than 1000000 leases`},
		"pod and node":        {`{"control":"executor","pod":"a/b","node":"n","outcome":"GONE"}`, `in:1: control executor: pod and node exclude each other`},
		"outcome of a node":   {`{"control":"executor","node":"n","outcome":"EVICTED"}`, `in:1: control executor: unknown outcome "EVICTED"; outcomes are APPLIED, GONE, SUPERSEDED, STALE, DENIED, FAILED, RECALLED, NO_ANSWER`},
		"figures":             {`{"control":"policy","policy":{"node_health_figures":3}}`, `in:1: control policy: policy field node_health_figures: 3 is not an object such as {"grace_period": "40s", "taint_rate": 0.2}`},
		"outcome":             {`{"control":"executor","pod":"a/b","outcome":"YES"}`, `in:1: control executor: unknown outcome "YES"; outcomes are EVICTED, GONE, SUPERSEDED, STALE, BLOCKED, DENIED, FAILED, RECALLED, NO_ANSWER`},
		"no policy":           {`{"control":"policy"}`, "in:1: control policy: policy is not an object"},
		"policy a list":       {`{"control":"policy","policy":[]}`, "in:1: control policy: policy is not an object"},
		"policy field": {`{"control":"policy","policy":{"rates":1}}`, `in:1: control policy: policy has no field "rates"; it has mode, default_not_ready_toleration, ` +
			`default_unreachable_toleration, disable_default_tolerations, rate, unlimited_rate, method, budget_wait, ignored_taint_keys, excluded_namespaces, comparison_operators, blast_radius, disable_blast_radius, node_health, node_health_figures`},
		"policy field twice": {`{"control":"policy","policy":{"unlimited_rate":true,"unlimitedRate":true}}`, `in:1: control policy: policy field unlimited_rate is there twice`},
		"policy null":        {`{"control":"policy","policy":{"rate":null}}`, `in:1: control policy: policy field rate is null; leave it out to keep it as it is`},
		"policy mode":        {`{"control":"policy","policy":{"mode":"ON"}}`, `in:1: control policy: policy field mode: "ON" is not one of SHADOW, ENFORCE`},
		"policy mode number": {`{"control":"policy","policy":{"mode":1}}`, `in:1: control policy: policy field mode: 1 is not one of SHADOW, ENFORCE`},
		"policy duration":    {`{"control":"policy","policy":{"budget_wait":"5m"}}`, `in:1: control policy: policy field budget_wait: "5m" is not a duration in seconds such as "300s"`},
		"policy list":        {`{"control":"policy","policy":{"ignored_taint_keys":"m"}}`, `in:1: control policy: policy field ignored_taint_keys: "m" is not a list of text`},
		"policy bool":        {`{"control":"policy","policy":{"unlimited_rate":"y"}}`, `in:1: control policy: policy field unlimited_rate: "y" is not true or false`},
		"policy rate":        {`{"control":"policy","policy":{"rate":5}}`, `in:1: control policy: policy field rate: 5 is not an object such as {"per_second": 50, "burst": 100}`},
		"empty":              {"  \n", "in: no Kubernetes objects and no timeline lines in it"},
		"nothing":            {"", "in: no Kubernetes objects and no timeline lines in it"},
		"only a comment":     {"# none\n", "in: no Kubernetes objects and no timeline lines in it"},
		"empty documents":    {"---\n---\n", "in: no Kubernetes objects and no timeline lines in it"},
		"HTML":               {"\n<html>", "in:2: this is HTML or XML, not Kubernetes objects"},
		"binary":             {"\x00\x01", "in:1: this is not text"},
		"compressed":         {"\x1f\x8b\x08", "in:1: this is not text; if it is compressed, decompress it first"},
		"UTF-16":             {"\xff\xfe{\x00", "in:1: this is UTF-16, not UTF-8; write it again as UTF-8"},
		"binary after text":  {"a: \x01", "in: document 1: not YAML: control characters are not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll(t, tc.in, timeline.Options{})
			var bad *timeline.Error
			if !errors.As(err, &bad) || err.Error() != tc.want {
				t.Fatalf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestObjectFields(t *testing.T) {
	got, err := readAll(t, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","uid":"u","resourceVersion":"7","labels":{"a":"b"},"creationTimestamp":"2026-01-01T00:00:01Z"},
"spec":{"unschedulable":true,"taints":[{"key":"k","value":"v","effect":"NoExecute","timeAdded":"2026-01-01T02:00:00+02:00"},{"key":"l"}]},
"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown","lastHeartbeatTime":"2026-01-01T00:00:02Z","lastTransitionTime":"2026-01-01T00:00:03Z"}]}}
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ns","uid":"v","annotations":{"kubernetes.io/config.mirror":"x","other":"y"},"deletionTimestamp":"2026-01-01T00:00:04Z",
"ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":"d","uid":"w","controller":true}]},
"spec":{"nodeName":"n","priority":-5,"priorityClassName":"low","terminationGracePeriodSeconds":0,"tolerations":[{"key":"k","operator":"Exists","effect":"NoExecute","tolerationSeconds":9223372036854775807},{"operator":"Exists"}]},
"status":{"phase":"Running","startTime":"2026-01-01T00:00:05Z","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:09Z"},{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-01T00:00:06Z"},{"type":"DisruptionTarget","status":"True","reason":"DeletionByTaintManager","lastTransitionTime":"2026-01-01T00:00:07Z"}]}}`, timeline.Options{})
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	at := func(s int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(1767225600+s, 0)) }
	long, grace, low := int64(9223372036854775807), int64(0), int32(-5)
	node := &reprievev1.Node{
		Name: "n", Uid: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"}, CreationTime: at(1), Unschedulable: true,
		Taints:     []*reprievev1.Taint{{Key: "k", Value: "v", Effect: "NoExecute", TimeAdded: at(0)}, {Key: "l"}},
		Conditions: []*reprievev1.NodeCondition{{Type: "Ready", Status: "Unknown", Reason: "NodeStatusUnknown", LastHeartbeatTime: at(2), LastTransitionTime: at(3)}},
	}
	pod := &reprievev1.Pod{
		Name: "p", Namespace: "ns", Uid: "v", Mirror: true, DeletionTime: at(4), NodeName: "n", Phase: "Running", StartTime: at(5), ScheduledTime: at(6),
		OwnerReferences: []*reprievev1.OwnerReference{{ApiVersion: "apps/v1", Kind: "DaemonSet", Name: "d", Uid: "w", Controller: true}},
		Tolerations:     []*reprievev1.Toleration{{Key: "k", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &long}, {Operator: "Exists"}},
		Priority:        &low, PriorityClassName: "low", TerminationGracePeriodSeconds: &grace,
		DisruptionReason: "DeletionByTaintManager", DisruptionTime: at(7),
	}
	if d := cmp.Diff(node, got[0].Node, protocmp.Transform()) + cmp.Diff(pod, got[1].Pod, protocmp.Transform()); d != "" {
		t.Fatalf("objects (-want +got):\n%s", d)
	}
	if ev := got[1].Event(); ev.GetType() != reprievev1.Event_EVENT_TYPE_UPSERT || ev.GetPod() != got[1].Pod {
		t.Fatalf("event %v", ev)
	}
	if d := cmp.Diff([]int{1, 4}, []int{got[0].Pos.Line, got[1].Pos.Line}); d != "" {
		t.Fatalf("lines (-want +got):\n%s", d)
	}
}

func TestControls(t *testing.T) {
	got, err := readAll(t, `{"at":"2s","control":"restart","down":"1m"}
{"control":"policy","cluster":"east","policy":{"mode":"shadow","method":"EVICTION_METHOD_EVICT","defaultNotReadyToleration":"600s","ignored_taint_keys":[],"rate":{"per_second":2,"burst":3}}}
{"at":"3s","control":"executor","pod":"ns/p","outcome":"NO_ANSWER"}`, timeline.Options{})
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	mode, method := reprievev1.Mode_MODE_SHADOW, reprievev1.EvictionMethod_EVICTION_METHOD_EVICT
	want := []timeline.Entry{
		{At: 2 * time.Second, HasAt: true, Cluster: "default", Control: &timeline.Control{Kind: timeline.Restart, Down: time.Minute}, Pos: timeline.Position{File: "in", Line: 1}},
		{At: 2 * time.Second, Cluster: "east", Control: &timeline.Control{
			Kind: timeline.Policy, PolicyFields: []string{"default_not_ready_toleration", "ignored_taint_keys", "method", "mode", "rate"},
			Policy: &reprievev1.ClusterPolicy{
				Mode: &mode, Method: &method, DefaultNotReadyToleration: durationpb.New(10 * time.Minute), Rate: &reprievev1.Rate{PerSecond: 2, Burst: 3},
			},
		}, Pos: timeline.Position{File: "in", Line: 2}},
		{At: 3 * time.Second, HasAt: true, Cluster: "default", Control: &timeline.Control{
			Kind: timeline.Executor, PodNamespace: "ns", PodName: "p", Outcome: reprievev1.Outcome_OUTCOME_NO_ANSWER,
		}, Pos: timeline.Position{File: "in", Line: 3}},
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Fatalf("entries (-want +got):\n%s", d)
	}
}

// TestListed: what a watch shows before its first change is its list; a timeline
// says itself when a list is complete.
func TestListed(t *testing.T) {
	added, changed := `{"type":"ADDED","object":`+nodeJSON+`}`, `{"type":"MODIFIED","object":`+nodeJSON+`}`
	for in, want := range map[string][]bool{
		added + added + changed + added:                        {true, true, false, false},
		`{"at":"0s","type":"ADDED","object":` + nodeJSON + `}`: {false},
		`{"control":"synced"}` + added:                         {false, false},
		nodeJSON:                                               {true},
	} {
		got, err := readAll(t, in, timeline.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var listed []bool
		for _, e := range got {
			listed = append(listed, e.Listed)
		}
		if !slices.Equal(listed, want) {
			t.Errorf("%s: listed %v, want %v", in, listed, want)
		}
	}
}

func TestDerivedUIDIsStableAndWarnedOfOnce(t *testing.T) {
	in := `{"kind":"Pod","metadata":{"name":"p","namespace":"ns"}}
{"kind":"Pod","metadata":{"name":"p","namespace":"ns"}}
{"kind":"Pod","metadata":{"name":"b-c","namespace":"a"}}{"kind":"Pod","metadata":{"name":"c","namespace":"a-b"}}
{"kind":"Node","metadata":{"name":"n"}}{"kind":"Node","metadata":{"name":"` + strings.Repeat("n", 200) + `"}}`
	var warnings []string
	o := timeline.Options{MissingUID: timeline.DeriveMissingUID, UIDs: timeline.NewUIDs(), Warn: func(w timeline.Warning) { warnings = append(warnings, w.Pos.String()+": "+w.Text) }}
	got, err := readAll(t, in, o)
	if err != nil {
		t.Fatal(err)
	}
	var uids []string
	for _, e := range got {
		uids = append(uids, e.Pod.GetUid()+e.Node.GetUid())
	}
	want := []string{"derived-pod-ns/p", "derived-pod-ns/p", "derived-pod-a/b-c", "derived-pod-a-b/c", "derived-node-n"}
	if d := cmp.Diff(want, uids[:5]); d != "" || len(uids[5]) > 128 || !strings.HasPrefix(uids[5], "derived-node-") {
		t.Fatalf("UIDs %q (-want +got):\n%s", uids, d)
	}
	if len(warnings) != 5 || warnings[0] != "in:1: Pod ns/p has no metadata.uid; using derived-pod-ns/p" {
		t.Fatalf("warnings %q", warnings)
	}
}

// TestUIDs: two readers share them, a cluster has its own, a deleted object frees its.
func TestUIDs(t *testing.T) {
	o := timeline.Options{UIDs: timeline.NewUIDs()}
	renamed := strings.Replace(podJSON, `"p"`, `"q"`, 1)
	for _, tc := range []struct{ in, want string }{
		{podJSON, ""},
		{`{"cluster":"east","type":"ADDED","object":` + renamed + `}`, ""},
		{renamed, "in:1: UID u-p is Pod default/p and Pod default/q; a UID has one name for ever; the input mixes clusters or was edited"},
		{`{"type":"DELETED","object":` + podJSON + `}`, ""},
		{renamed, ""},
	} {
		_, err := drain(timeline.NewReader(strings.NewReader(tc.in), "in", o))
		if (err == nil) != (tc.want == "") || err != nil && err.Error() != tc.want {
			t.Fatalf("%s: got %v, want %s", tc.in, err, tc.want)
		}
	}
}

func TestSkippedKindsAreCountedAndWarnedOf(t *testing.T) {
	var warnings []string
	r := timeline.NewReader(strings.NewReader(`{"kind":"List","items":[{"kind":"ConfigMap"},{"kind":"Secret"},{"kind":"ConfigMap"},{"kind":"Node","apiVersion":"x/v1"}]}`), "in",
		timeline.Options{Warn: func(w timeline.Warning) { warnings = append(warnings, w.Pos.String()+": "+w.Text) }})
	if _, err := drain(r); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]int{"ConfigMap": 2, "Secret": 1, "Node of x/v1": 1}, r.Skipped()); d != "" {
		t.Fatalf("skipped (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"in: passed over 4 that are neither nodes nor pods nor leases of nodes: ConfigMap 2, Node of x/v1 1, Secret 1"}, warnings); d != "" {
		t.Fatalf("warnings (-want +got):\n%s", d)
	}
}

// TestErrorKeepsWhatCameBefore: nothing is lost of what was complete.
func TestErrorKeepsWhatCameBefore(t *testing.T) {
	for _, in := range []string{
		`{"type":"ADDED","object":` + nodeJSON + "}\n" + `{"type":"ADDED","obj`,
		`{"kind":"List","items":[` + nodeJSON + `,{"kind":"Pod"`,
		"kind: Node\nmetadata: {name: n1, uid: a}\n---\n\ta",
	} {
		got, err := readAll(t, in, timeline.Options{})
		if err == nil || len(got) != 1 || got[0].Node.GetName() != "n1" {
			t.Errorf("%s: got %v and %v, want node n1 and an error", in, words(got), err)
		}
	}
}

func TestInputError(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, in := range []string{"", `{"kind":`, `{"kind":"List","items":[{`, podJSON, "kind: Pod\n"} {
		_, err := drain(timeline.NewReader(io.MultiReader(strings.NewReader(in), iotest.ErrReader(broken)), "in", timeline.Options{}))
		if !errors.Is(err, broken) || err.Error() != "in: disk on fire" {
			t.Errorf("after %q: got %v", in, err)
		}
	}
}

// TestScenarioFiles: every shared scenario is a timeline without faults.
func TestScenarioFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.jsonl")
	if err != nil || len(files) < 37 {
		t.Fatalf("found %d scenarios, want 37 or more (%v)", len(files), err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAll(t, string(b), timeline.Options{})
		if lines := strings.Count(strings.TrimSpace(string(b)), "\n") + 1; err != nil || len(got) != lines {
			t.Errorf("%s: %d entries of %d lines, %v", name, len(got), lines, err)
		}
		in, err := os.Open(strings.TrimSuffix(name, ".jsonl") + ".expect.json")
		if err != nil {
			t.Fatal(err)
		}
		e, err := timeline.ReadExpectation(in, name)
		_ = in.Close()
		if err != nil || e.Name != strings.TrimSuffix(filepath.Base(name), ".jsonl") {
			t.Errorf("%s: expectation %+v, %v", name, e, err)
		}
	}
}

// The nodes' leases are read, by each of their renewTimes once; other leases are passed over.
func TestLeases(t *testing.T) {
	lease := func(name, namespace, at string) string {
		return `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"` + name + `","namespace":"` + namespace + `"},"spec":{"leaseTransitions":3,"renewTime":` + at + `}}`
	}
	at := func(s string) string { return `"2026-01-01T00:00:` + s + `.123456Z"` }
	in := `{"apiVersion":"v1","kind":"List","items":[` + lease("n1", "kube-node-lease", at("01")) + `,` + lease("leader", "kube-system", at("01")) + `]}
{"type":"MODIFIED","object":` + lease("n1", "kube-node-lease", at("01")) + `}
{"type":"MODIFIED","object":` + lease("n1", "kube-node-lease", at("11")) + `}
{"type":"MODIFIED","cluster":"other","object":` + lease("n1", "kube-node-lease", at("11")) + `}
{"type":"ADDED","object":` + lease("n2", "kube-node-lease", "null") + `}
{"type":"DELETED","object":` + lease("n2", "kube-node-lease", at("12")) + `}`
	var warnings []timeline.Warning
	r := timeline.NewReader(strings.NewReader(in), "in", timeline.Options{Warn: func(w timeline.Warning) { warnings = append(warnings, w) }})
	entries, err := drain(r)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		line := string(e.Type) + " " + e.Lease.Node
		if r := e.Event().GetLeaseRenewals(); r != nil {
			line += fmt.Sprintf(" %s renewed at %s", r.GetNodeNames()[0], r.GetRenewTimes()[0].AsTime().Format("05.000000"))
		}
		got = append(got, line)
	}
	want := []string{"ADDED n1 n1 renewed at 01.123456", "MODIFIED n1", "MODIFIED n1 n1 renewed at 11.123456", "MODIFIED n1 n1 renewed at 11.123456", "ADDED n2", "DELETED n2"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0].Text, "Lease 1") {
		t.Errorf("warnings %v", warnings)
	}
	_, err = drain(timeline.NewReader(strings.NewReader(lease("n1", "kube-node-lease", `"now"`)), "in", timeline.Options{}))
	if err == nil || !strings.Contains(err.Error(), `Lease n1: field spec.renewTime: "now" is not a time`) {
		t.Errorf("a time that is none: %v", err)
	}
}

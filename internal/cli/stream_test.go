package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// serveOneOrder is an Evict service that sends one order and acknowledges its answer.
func serveOneOrder(got chan<- *reprievev1.Result) func(grpc.BidiStreamingServer[reprievev1.EvictRequest, reprievev1.EvictResponse]) error {
	return func(s grpc.BidiStreamingServer[reprievev1.EvictRequest, reprievev1.EvictResponse]) error {
		for {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			switch {
			case m.GetHello() != nil:
				err = s.Send(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Welcome{Welcome: &reprievev1.ExecutorWelcome{}}})
				if err == nil {
					err = s.Send(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Order{Order: &reprievev1.Order{
						Token: "secret-token", DeadlineIn: durationpb.New(30 * time.Second), Attempt: 2, EvictionId: "prod/3",
						Action: &reprievev1.Order_EvictPod{EvictPod: &reprievev1.EvictPod{Cluster: "prod", Namespace: "web", Name: "api-0", Uid: "u3", Node: "n2",
							Method: reprievev1.EvictionMethod_EVICTION_METHOD_DELETE, DueTime: at(-2 * time.Second), Cause: taintCause("drain", "", 0, false)}}}}})
				}
			case m.GetResult() != nil:
				got <- m.GetResult()
				err = s.Send(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_ResultAck{ResultAck: &reprievev1.ResultAck{
					Token: m.GetResult().GetToken(), Disposition: reprievev1.ResultAck_DISPOSITION_ACCEPTED}}})
			}
			if err != nil {
				return err
			}
		}
	}
}

func TestExecute(t *testing.T) {
	order := "2026-01-01T12:00:00Z  ORDER   prod  web/api-0  n2  uid u3  DELETE  due 2s ago  attempt 2  drain\n"
	answer := "2026-01-01T12:00:00Z  ANSWER  prod  web/api-0  "
	for name, tc := range map[string]struct {
		args    []string
		outcome reprievev1.Outcome
		message string
		out     string
	}{
		"answer":     {[]string{"--answer", "blocked"}, reprievev1.Outcome_OUTCOME_BLOCKED, "answered by hand", order + answer + "BLOCKED  answered by hand\n"},
		"exec":       {[]string{"--exec", `echo first; echo "$REPRIEVE_POD $REPRIEVE_ATTEMPT"`}, reprievev1.Outcome_OUTCOME_EVICTED, "api-0 2", order + answer + "EVICTED  api-0 2\n"},
		"exec gone":  {[]string{"--exec", "exit 10"}, reprievev1.Outcome_OUTCOME_GONE, "", order + answer + "GONE\n"},
		"exec fails": {[]string{"--exec", "echo no; exit 7"}, reprievev1.Outcome_OUTCOME_FAILED, "exit code 7: no", order + answer + "FAILED  exit code 7: no\n"},
		"exec input": {[]string{"--exec", `grep -q '"uid":"u3"' && exit 14`}, reprievev1.Outcome_OUTCOME_DENIED, "", order + answer + "DENIED\n"},
		"no token":   {[]string{"--exec", "if grep -q secret-token; then exit 1; fi"}, reprievev1.Outcome_OUTCOME_EVICTED, "", order + answer + "EVICTED\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			got := make(chan *reprievev1.Result, 1)
			h.fake.evict = serveOneOrder(got)
			code, out, errs := h.run(append([]string{"execute", "--clusters", "prod", "--count", "1"}, tc.args...)...)
			if code != exitOK || out != tc.out {
				t.Fatalf("exit %d, stderr %q\ngot  %q\nwant %q", code, errs, out, tc.out)
			}
			if r := <-got; r.GetOutcome() != tc.outcome || r.GetMessage() != tc.message {
				t.Errorf("answered %s %q, want %s %q", r.GetOutcome(), r.GetMessage(), tc.outcome, tc.message)
			}
		})
	}
}

// TestExecuteRecall checks what a recalled command answers.
func TestExecuteRecall(t *testing.T) {
	for name, tc := range map[string]struct {
		command string
		outcome reprievev1.Outcome
	}{
		"killed":       {"echo started > STARTED; sleep 60; echo not reached", reprievev1.Outcome_OUTCOME_RECALLED},
		"child killed": {"trap 'exit 143' TERM; echo started > STARTED; while :; do :; done", reprievev1.Outcome_OUTCOME_RECALLED},
		"true outcome": {"trap 'exit 0' TERM; echo started > STARTED; while :; do :; done", reprievev1.Outcome_OUTCOME_EVICTED},
		"gone":         {"trap 'exit 10' TERM; echo started > STARTED; while :; do :; done", reprievev1.Outcome_OUTCOME_GONE},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			started := filepath.Join(t.TempDir(), "started")
			if err := syscall.Mkfifo(started, 0o600); err != nil {
				t.Fatal(err)
			}
			got := make(chan *reprievev1.Result, 1)
			one := serveOneOrder(got)
			h.fake.evict = func(s grpc.BidiStreamingServer[reprievev1.EvictRequest, reprievev1.EvictResponse]) error {
				go func() {
					// The pipe's two ends wait for each other.
					if _, err := os.ReadFile(started); err == nil {
						_ = s.Send(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Recall{Recall: &reprievev1.Recall{Token: "secret-token", Reason: reprievev1.Recall_REASON_PAUSED}}})
					}
				}()
				return one(s)
			}
			code, out, errs := h.run("execute", "--count", "1", "--exec", strings.ReplaceAll(tc.command, "STARTED", started))
			if code != exitOK || !strings.Contains(out, "RECALL  prod  web/api-0  PAUSED\n") {
				t.Errorf("exit %d, stderr %q, output %q", code, errs, out)
			}
			if r := <-got; r.GetOutcome() != tc.outcome {
				t.Errorf("answered %s %q, want %s", r.GetOutcome(), r.GetMessage(), tc.outcome)
			}
		})
	}
}

// TestExecuteRecallEndsChildren recalls a command whose child takes no SIGTERM
// and outlives the shell.
func TestExecuteRecallEndsChildren(t *testing.T) {
	dir := t.TempDir()
	held := filepath.Join(dir, "held")
	if err := syscall.Mkfifo(held, 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHarness(t)
	got, started, gone := make(chan *reprievev1.Result, 1), make(chan struct{}), make(chan struct{})
	one := serveOneOrder(got)
	h.fake.evict = func(s grpc.BidiStreamingServer[reprievev1.EvictRequest, reprievev1.EvictResponse]) error {
		go func() {
			<-started
			_ = s.Send(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Recall{Recall: &reprievev1.Recall{Token: "secret-token", Reason: reprievev1.Recall_REASON_PAUSED}}})
		}()
		return one(s)
	}
	go func() {
		defer close(gone)
		// The child holds the pipe's other end for as long as it lives.
		f, err := os.Open(held)
		if err != nil {
			return
		}
		defer f.Close()
		_, _ = f.Read(make([]byte, 1))
		close(started)
		_, _ = io.Copy(io.Discard, f)
	}()
	code, _, errs := h.run("execute", "--count", "1", "--exec", strings.ReplaceAll(`(trap '' TERM; exec >HELD 2>&1; echo; exec sleep 300) & wait`, "HELD", held))
	if r := <-got; code != exitOK || r.GetOutcome() != reprievev1.Outcome_OUTCOME_RECALLED {
		t.Errorf("exit %d, stderr %q, answered %s %q", code, errs, r.GetOutcome(), r.GetMessage())
	}
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("the child goes on after the recall")
	}
}

// serveFeed is a Feed service that acknowledges everything.
func serveFeed(got chan<- *reprievev1.FeedRequest) func(grpc.BidiStreamingServer[reprievev1.FeedRequest, reprievev1.FeedResponse]) error {
	return func(s grpc.BidiStreamingServer[reprievev1.FeedRequest, reprievev1.FeedResponse]) error {
		for {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			got <- m
			if m.GetHello() != nil {
				err = s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_Welcome{Welcome: &reprievev1.FeedWelcome{
					HeartbeatInterval: durationpb.New(10 * time.Second), Mode: reprievev1.Mode_MODE_SHADOW, MaxBatchEvents: 100}}})
			}
			if err == nil {
				err = s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_Ack{Ack: &reprievev1.Ack{Sequence: m.GetSequence(), Synced: m.GetSyncEnd() != nil}}})
			}
			if err != nil {
				return err
			}
		}
	}
}

const nodeAndPod = `{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"nu1"}}}
{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p1","namespace":"web","uid":"pu1"},"spec":{"nodeName":"n1"}}}
`

func TestFeed(t *testing.T) {
	h := newHarness(t)
	got := make(chan *reprievev1.FeedRequest, 100)
	h.fake.feed = serveFeed(got)
	h.in = nodeAndPod
	code, _, errs := h.run("feed", "--cluster", "prod", "--cluster-uid", "cu", "-f", "-")
	if code != exitOK || !strings.HasPrefix(errs, "Cluster prod is synced: 1 node, 1 pod; mode SHADOW") {
		t.Fatalf("exit %d, stderr %q", code, errs)
	}
	hello := (<-got).GetHello()
	if hello.GetCluster() != "prod" || hello.GetClusterUid() != "cu" {
		t.Errorf("hello is %v", hello)
	}
	events := 0
	for len(got) > 0 {
		events += len((<-got).GetBatch().GetEvents())
	}
	if events != 2 {
		t.Errorf("%d events were fed, want 2", events)
	}
}

func TestFeedRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"no uid":        {`{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}}`, "uid"},
		"truncated":     {nodeAndPod + `{"type":"MODI`, "stdin:3"},
		"control":       {nodeAndPod + `{"control":"pause"}`, `control "pause" is for replay`},
		"other cluster": {`{"cluster":"other","type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u"}}}`, `this feed is for "prod"`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.fake.feed = serveFeed(make(chan *reprievev1.FeedRequest, 100))
			h.in = tc.in
			code, _, errs := h.run("feed", "--cluster", "prod", "--cluster-uid", "cu", "-f", "-")
			if code != exitFailure || !strings.Contains(errs, "reprieve: feed: ") || !strings.Contains(errs, tc.want) {
				t.Errorf("exit %d, stderr %q, want %q in it", code, errs, tc.want)
			}
		})
	}
}

// TestFeedOfAnotherCluster checks that a feed with a wrong UID ends, and tells of both.
func TestFeedOfAnotherCluster(t *testing.T) {
	h := newHarness(t)
	h.in = nodeAndPod
	h.fake.feed = func(grpc.BidiStreamingServer[reprievev1.FeedRequest, reprievev1.FeedResponse]) error {
		return refusal(t, codes.FailedPrecondition, "CLUSTER_UID_MISMATCH", `cluster UID does not match: "prod" is bound to cu, the feed is of other`)
	}
	code, _, errs := h.run("feed", "--cluster", "prod", "--cluster-uid", "other", "-f", "-")
	want := "reprieve: feed: cluster UID does not match: \"prod\" is bound to cu, the feed is of other; " +
		"check --cluster-uid; a new cluster takes another name, or the old one's after `reprieve forget`\n"
	if code != exitFailure || errs != want {
		t.Errorf("exit %d\ngot  %q\nwant %q", code, errs, want)
	}
}

// At a terminal a watch is a table that is drawn over itself, so no line of it may be
// wider than the terminal: that would take two of its rows.
func TestWatchDrawsATable(t *testing.T) {
	h := newHarness(t)
	h.width = 60
	ev := sampleEvictions()
	change := func(e *reprievev1.Eviction) *reprievev1.WatchEvictionsResponse {
		return &reprievev1.WatchEvictionsResponse{Event: &reprievev1.WatchEvictionsResponse_Change{Change: &reprievev1.EvictionChange{Revision: "1", Eviction: e}}}
	}
	end := &reprievev1.WatchEvictionsResponse{Event: &reprievev1.WatchEvictionsResponse_InitialListEnd{InitialListEnd: &reprievev1.InitialListEnd{}}}
	closed := proto.CloneOf(ev[0])
	closed.State = reprievev1.EvictionState_EVICTION_STATE_CLOSED
	h.fake.changes = []*reprievev1.WatchEvictionsResponse{change(ev[0]), change(ev[1]), end, change(closed), end}
	_, out, _ := h.run("get", "evictions", "-w")
	first, second, again := strings.Cut(out, "\x1b[3A\x1b[J")
	if !again || strings.Count(first, "\n") != 3 || !strings.HasPrefix(first, "CLUSTER") || !strings.Contains(first, "web/fron") {
		t.Fatalf("two evictions are drawn as %q", out)
	}
	if strings.Count(second, "\n") != 2 || strings.Contains(second, "web/fron") {
		t.Errorf("after one has closed: %q", second)
	}
	if _, whole, _ := h.run("get", "evictions", "-w", "-o", "wide"); strings.Contains(whole, "\x1b") || !strings.Contains(whole, sampleEvictions()[1].GetPod()) {
		t.Errorf("with -o wide: %q", whole)
	}
	for line := range strings.Lines(first + second) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > h.width {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

func TestWatchLines(t *testing.T) {
	h := newHarness(t)
	ev := sampleEvictions()
	for _, e := range []*reprievev1.Eviction{ev[0], ev[4]} {
		h.fake.changes = append(h.fake.changes, &reprievev1.WatchEvictionsResponse{Event: &reprievev1.WatchEvictionsResponse_Change{Change: &reprievev1.EvictionChange{Revision: "1", Eviction: e}}})
	}
	code, out, _ := h.run("get", "evictions", "-w")
	want := "2026-01-01T12:00:00Z  prod  web/frontend-7d9c5  n1  WAITING in 4m12s  not-ready (default 5m00s)\n" +
		"2026-01-01T12:00:00Z  prod  web/old  n3  CLOSED CANCELLED REQUEST_WITHDRAWN  drain\n"
	if code != exitDenied || out != want {
		t.Errorf("exit %d\ngot  %q\nwant %q", code, out, want)
	}
	h.fake.err = status.Error(codes.NotFound, "no such cluster")
	if code, _, _ := h.run("get", "evictions", "-w", "--cluster", "x"); code != exitNotFound {
		t.Errorf("exit %d, want %d", code, exitNotFound)
	}
}

func TestReplayAndSimulate(t *testing.T) {
	dir := "../../client/timeline/testdata/scenarios/"
	h := newHarness(t)
	code, out, errs := h.run("replay", dir+"tolerated-for-a-while.jsonl", "-o", "json")
	if code != exitOK || !strings.Contains(out, `{"at":"31s","cluster":"default","event":"ordered","namespace":"default","pod":"p"`) {
		t.Errorf("exit %d, stderr %q, output %q", code, errs, out)
	}
	if code, out, errs = h.run("replay", dir+"tolerated-for-a-while.jsonl", "-n", "other"); code != exitOK || out != "" {
		t.Errorf("another namespace: exit %d, stderr %q, output %q", code, errs, out)
	}
	code, out, _ = h.run("replay", dir+"tolerated-for-a-while.jsonl", "--expect", dir+"tolerated-for-a-while.expect.json")
	if code != exitOK || out != "tolerated-for-a-while: as expected, 1 order\n" {
		t.Errorf("exit %d, output %q", code, out)
	}
	code, out, errs = h.run("replay", dir+"tolerated-for-a-while.jsonl", "--expect", dir+"no-schedule-never-evicts.expect.json")
	if code != exitFailure || !strings.Contains(out, "differs (- expected, + sent)\n+") || errs != "" {
		t.Errorf("exit %d, stderr %q, output %q", code, errs, out)
	}
	file := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(file, []byte(nodeAndPod), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs = h.run("simulate", "-f", file, "--taint", "n1=drain=yes:NoExecute")
	if want := "POD     NODE  LEAVES   WHY\nweb/p1  n1    at once  drain=yes not tolerated\n\n1 pod of 1 would leave.\n"; code != exitOK || out != want {
		t.Errorf("exit %d, stderr %q\ngot  %q\nwant %q", code, errs, out, want)
	}
	if code, _, errs := h.run("simulate", "-f", file, "--taint", "n1=drain:NoSchedule"); code != exitUsage || !strings.Contains(errs, "only NoExecute does") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

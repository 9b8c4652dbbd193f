package server

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/cli"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// reprieve runs the command line against the service and returns what it printed.
func (f *fixture) reprieve(args ...string) (code int, out, errs string) {
	f.t.Helper()
	return f.reprieveContext(f.ctx, args...)
}

func (f *fixture) reprieveContext(ctx context.Context, args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	env := &cli.Env{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Getenv: func(string) string { return "" },
		Clock: clock.NewReal(), Width: func() int { return 0 },
		Dial: func(ctx context.Context, conf client.Config) (*client.Conn, error) {
			conf.Dialer = func(ctx context.Context, _ string) (net.Conn, error) { return f.dialLocal(ctx, "") }
			return client.Dial(ctx, conf)
		},
	}
	code = cli.Main(ctx, env, args)
	return code, stdout.String(), stderr.String()
}

// held waits until the blast radius holds so many evictions and returns the cluster. It
// looks after each change: to look all the time would meet the limit of calls where a
// shard's timer is late.
func (f *fixture) held(want uint64) *reprievev1.Cluster {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	watch, err := f.query().WatchEvictions(ctx, &reprievev1.WatchEvictionsRequest{Cluster: "east", InitialList: true})
	if err != nil {
		f.t.Fatal(err)
	}
	for listed := false; ; {
		m, err := watch.Recv()
		if err != nil {
			f.t.Fatalf("waiting for %d held evictions: %v", want, err)
		}
		if listed = listed || m.GetInitialListEnd() != nil; !listed {
			continue
		}
		r, err := f.query().GetCluster(f.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
		if err != nil {
			f.t.Fatal(err)
		}
		n := uint64(0)
		for _, h := range r.GetCluster().GetHolds() {
			if h.GetHold() == reprievev1.HoldReason_HOLD_REASON_BLAST_RADIUS {
				n = h.GetCount()
			}
		}
		if n == want {
			return r.GetCluster()
		}
	}
}

// tripped wants so many tripped keys in the metric.
func (f *fixture) tripped(want string) {
	f.t.Helper()
	if err := testutil.GatherAndCompare(f.reg, strings.NewReader(`
# HELP reprieve_blast_radius_tripped Taint keys that came to too many nodes at once; what falls due by them on the rest is held.
# TYPE reprieve_blast_radius_tripped gauge
reprieve_blast_radius_tripped{cluster="east"} `+want+"\n"), "reprieve_blast_radius_tripped"); err != nil {
		f.t.Error(err)
	}
}

// rejected counts the evictions that history has as rejected.
func (f *fixture) rejected() (n int) {
	f.t.Helper()
	h, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{
		Cluster: "east", States: []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_CLOSED}, PageSize: 100,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range h.GetEvictions() {
		if e.GetCancelCause() == reprievev1.CancelCause_CANCEL_CAUSE_REJECTED {
			n++
		}
	}
	return n
}

// TestWorstDay: somebody taints every node by mistake. The limit goes, the rest
// is held and alarmed, and one command shows and rejects it.
func TestWorstDay(t *testing.T) {
	f := newFixture(t, memory(), enforce)
	feed := f.feed(f.ctx, hello("east"))
	feed.recv()
	var list, mistake []*reprievev1.Event
	for i := range 30 {
		node := fmt.Sprintf("n%02d", i)
		list = append(list, upsertNode(node), upsertPod("p"+node, node))
		mistake = append(mistake, upsertNode(node, "example.com/mistake"))
	}
	feed.list(list...)
	x := f.executor("x", 100, "east")
	feed.acked(feed.batch(mistake...), false)
	var sent, tokens []string
	for range 6 {
		o := x.order()
		sent, tokens = append(sent, o.GetEvictPod().GetNode()), append(tokens, o.GetToken())
	}
	for _, token := range tokens {
		x.answer(token, reprievev1.Outcome_OUTCOME_EVICTED)
	}
	slices.Sort(sent)
	if !slices.Equal(sent, []string{"n00", "n01", "n02", "n03", "n04", "n05"}) {
		t.Errorf("orders for %v", sent)
	}
	c := f.held(24)
	if c.GetBlastRadiusTrips() != 1 || !slices.ContainsFunc(c.GetWarnings(), func(w string) bool { return strings.Contains(w, "example.com/mistake") }) {
		t.Errorf("no alarm: trips %d, warnings %q", c.GetBlastRadiusTrips(), c.GetWarnings())
	}
	f.tripped("1")
	x.nothing()
	code, out, errs := f.reprieve("blast", "reject", "east", "--reason", "taint --all was a typo")
	want := regexp.MustCompile(`(?m)^example\.com/mistake +TRIPPED +(now|.* ago) +30 +24 +0 +24 +n06,.*$\nRejected taint example\.com/mistake in east: 24 pods stay\.\n$`)
	if code != 0 || !want.MatchString(out) {
		t.Fatalf("exit %d, %s, output\n%s", code, errs, out)
	}
	f.held(0)
	f.tripped("0")
	x.nothing()
	if n := f.rejected(); n != 24 {
		t.Errorf("%d of 24 evictions are in history as rejected", n)
	}
	if _, out, _ := f.reprieve("blast", "list", "east"); !strings.Contains(out, "REJECTED") {
		t.Errorf("the list after it:\n%s", out)
	}
	if code, _, errs := f.reprieve("blast", "reject", "east"); code != 3 {
		t.Errorf("rejecting again: exit %d, %s", code, errs)
	}
}

// TestFeedsListEndsWhereSyncedStands feeds files in which a mistake follows the list
// within the same read. It is news of a live cluster, not part of the adoption, in
// which nothing counts.
func TestFeedsListEndsWhereSyncedStands(t *testing.T) {
	const synced = `{"control":"synced"}` + "\n"
	var nodes, pods, mistake strings.Builder
	for i := range 30 {
		node := fmt.Sprintf(`"object":{"apiVersion":"v1","kind":"Node","metadata":{"name":"n%d","uid":"nu%d"}`, i, i)
		fmt.Fprintf(&nodes, `{"type":"ADDED",%s}}`+"\n", node)
		fmt.Fprintf(&mistake, `{"type":"MODIFIED",%s,"spec":{"taints":[{"key":"example.com/mistake","effect":"NoExecute"}]}}}`+"\n", node)
		fmt.Fprintf(&pods, `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"web","name":"p%d","uid":"pu%d"},"spec":{"nodeName":"n%d"}}}`+"\n", i, i, i)
	}
	for name, files := range map[string][]string{
		"one file":        {nodes.String() + pods.String() + synced + mistake.String()},
		"without control": {nodes.String() + pods.String() + mistake.String()},
		"two files":       {nodes.String() + synced + mistake.String(), pods.String() + synced},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, memory(), enforce)
			x := f.executor("x", 100, "east")
			args := []string{"feed", "--cluster", "east", "--cluster-uid", "cu", "--follow", "--synced-after", "1h"}
			for i, text := range files {
				file := filepath.Join(t.TempDir(), fmt.Sprint(i))
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "-f", file)
			}
			ctx, interrupt := context.WithCancel(f.ctx)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if code, _, errs := f.reprieveContext(ctx, args...); code != 0 || !strings.Contains(errs, "30 nodes, 30 pods; mode ENFORCE") {
					t.Errorf("feed: exit %d, %s", code, errs)
				}
			}()
			defer func() { <-ended }()
			defer interrupt()
			for range 6 {
				x.order()
			}
			f.held(24)
			x.nothing()
		})
	}
}

// nothing checks that no order has come: the answer to an unknown token is
// acknowledged after whatever was sent before it.
func (x *executor) nothing() {
	x.t.Helper()
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: &reprievev1.Result{
		Token: "unknown", Outcome: reprievev1.Outcome_OUTCOME_GONE,
	}}})
	if m := x.recv(); m.GetResultAck() == nil {
		x.t.Errorf("%v; want nothing but the answer", m)
	}
}

package deploy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/server"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

// testTimeout ends a test that waits for what does not come.
const testTimeout = 2 * time.Minute

// The hashes of the tokens "agent" and "viewer".
const tokens = `
- {name: agent, sha256: d4f0bc5a29de06b510f9aa428f1eedba926012b591fef7a518e776a7c9bd1824, role: agent, clusters: [east]}
- {name: viewer, sha256: d35ca5051b82ffc326a3b0b6574a9a3161dee16b9478a199ee39cd803ce5b799, role: viewer, clusters: [east]}
`

// running is the program reprieved in this process, on real ports and a real file.
type running struct {
	t     *testing.T
	ctx   context.Context
	conn  *grpc.ClientConn
	admin string
}

// start runs the program until the test ends.
func start(t *testing.T) *running {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokens.yaml"), []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	conf := "auth: {tokens_file: " + filepath.Join(dir, "tokens.yaml") + "}\ndefaults: {node_health: enforce}\n"
	if err := os.WriteFile(filepath.Join(dir, "reprieved.yaml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	read, write := io.Pipe()
	signals, code := make(chan os.Signal, 1), make(chan int, 1)
	args := []string{
		"--config", filepath.Join(dir, "reprieved.yaml"), "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0",
		"--admin-listen", "127.0.0.1:0", "--adopt", "enforce", "--log-format", "json",
	}
	go func() {
		code <- server.Main(server.Process{Args: args, Stdout: write, Stderr: write, Signals: signals, Exit: func(int) {}}, server.Parts{OpenStore: openStore})
		write.Close()
	}()
	r := &running{t: t, ctx: ctx}
	lines := bufio.NewScanner(read)
	for lines.Scan() {
		var line struct {
			Msg, Listen string
			Admin       string `json:"admin_listen"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("the program says %s", lines.Bytes())
		}
		if line.Msg == "serving" {
			r.admin = line.Admin
			r.conn = dial(t, line.Listen)
			break
		}
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, read)
	}()
	t.Cleanup(func() {
		cancel()
		signals <- os.Interrupt
		if c := <-code; c != 0 {
			t.Errorf("the program ended with %d", c)
		}
		<-drained
	})
	return r
}

func openStore(ctx context.Context, s server.StoreSettings) (engine.Store, error) {
	return bolt.Open(ctx, bolt.Options{Path: s.Path, Damaged: s.Damaged})
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// as is the context of a caller with a token.
func (r *running) as(token string) context.Context {
	return metadata.AppendToOutgoingContext(r.ctx, "authorization", "Bearer "+token)
}

func (r *running) fatal(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// feed lists a cluster whose one pod has to leave, and returns how to go on.
func (r *running) feed(first ...*reprievev1.Event) (send func(...*reprievev1.Event)) {
	r.t.Helper()
	stream, err := reprievev1.NewFeedServiceClient(r.conn).Feed(r.as("agent"))
	r.fatal(err)
	sequence := uint64(0)
	message := func(m *reprievev1.FeedRequest) {
		sequence++
		m.Sequence = sequence
		r.fatal(stream.Send(m))
	}
	send = func(events ...*reprievev1.Event) {
		message(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: events}}})
	}
	message(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Hello{Hello: &reprievev1.FeedHello{
		Cluster: "east", ClusterUid: "uid-east", FeederId: "feeder",
	}}})
	message(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}})
	send(first...)
	message(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}})
	for {
		m, err := stream.Recv()
		r.fatal(err)
		if m.GetAck().GetSynced() {
			return send
		}
	}
}

// evict answers one order for a pod and one for a node, and once with a token that nobody has.
func (r *running) evict() {
	r.t.Helper()
	stream, err := reprievev1.NewEvictionServiceClient(r.conn).Evict(r.as("agent"))
	r.fatal(err)
	answer := func(token string, outcome reprievev1.Outcome) {
		r.fatal(stream.Send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{
			Result: &reprievev1.Result{Token: token, Outcome: outcome},
		}}))
	}
	r.fatal(stream.Send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{
		Hello: &reprievev1.ExecutorHello{ExecutorId: "executor", Clusters: []string{"east"}, Capacity: 10, NodeOrders: true},
	}}))
	for acks := 0; acks < 3; {
		m, err := stream.Recv()
		r.fatal(err)
		switch {
		case m.GetOrder().GetUpdateNode() != nil:
			answer(m.GetOrder().GetToken(), reprievev1.Outcome_OUTCOME_APPLIED)
		case m.GetOrder() != nil:
			answer(m.GetOrder().GetToken(), reprievev1.Outcome_OUTCOME_EVICTED)
			answer("of-nobody", reprievev1.Outcome_OUTCOME_EVICTED)
		case m.GetResultAck() != nil:
			acks++
		}
	}
}

func upsert(object any) *reprievev1.Event {
	e := &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT}
	switch o := object.(type) {
	case *reprievev1.Node:
		e.Object = &reprievev1.Event_Node{Node: o}
	case *reprievev1.Pod:
		e.Object = &reprievev1.Event_Pod{Pod: o}
	}
	return e
}

// busy makes the program do once all that it counts, but for what needs a fault.
func (r *running) busy() {
	r.t.Helper()
	pod := &reprievev1.Pod{Namespace: "shop", Name: "web", Uid: "uid-web", NodeName: "n1", Phase: "Running"}
	send := r.feed(upsert(&reprievev1.Node{Name: "n1", Uid: "uid-n1", Taints: []*reprievev1.Taint{
		{Key: "broken", Effect: "NoExecute"}, {Key: "strange", Effect: "NoSuchEffect"},
	}, Conditions: []*reprievev1.NodeCondition{{Type: "Ready", Status: "True"}, {Type: "MemoryPressure", Status: "True"}}}), upsert(pod))
	r.evict()
	// Terminating is what closes it.
	send(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: &reprievev1.Event_Pod{Pod: pod}})
	_, err := reprievev1.NewAdminServiceClient(r.conn).PauseEvictions(r.as("viewer"), &reprievev1.PauseEvictionsRequest{Cluster: "east", Reason: "x"})
	if status.Code(err) != codes.PermissionDenied {
		r.t.Fatalf("a viewer's pause: %v; want PERMISSION_DENIED", err)
	}
}

// labels are the label names of each metric, by its name.
type labels map[string]map[string]bool

var sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? `)
var labelName = regexp.MustCompile(`([a-zA-Z_]\w*)="(?:[^"\\]|\\.)*"`)

// scrape reads /metrics, again until it has what is wanted or time is up.
func (r *running) scrape(want ...string) labels {
	r.t.Helper()
	var missing []string
	for r.ctx.Err() == nil {
		found := r.scrapeOnce()
		if found == nil {
			break
		}
		missing = slices.DeleteFunc(slices.Clone(want), func(w string) bool { return found[w] != nil })
		if len(missing) == 0 {
			return found
		}
	}
	r.t.Fatalf("not on /metrics: %q", missing)
	return nil
}

func (r *running) scrapeOnce() labels {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, "http://"+r.admin+"/metrics", nil)
	r.fatal(err)
	resp, err := http.DefaultClient.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	r.fatal(err)
	defer resp.Body.Close()
	out := labels{}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := sample.FindStringSubmatch(lines.Text()); m != nil {
			out.add(m[1])
			for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
				out[m[1]][l[1]] = true
			}
		}
	}
	r.fatal(lines.Err())
	if len(out) == 0 || strings.TrimSpace(resp.Status) != "200 OK" {
		r.t.Fatalf("/metrics: %s with %d metrics", resp.Status, len(out))
	}
	return out
}

// add makes a metric known with the labels that every scrape gives it.
func (l labels) add(name string) {
	if l[name] == nil {
		l[name] = map[string]bool{"job": true, "instance": true}
	}
}

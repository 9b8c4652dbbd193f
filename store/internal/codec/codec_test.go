package codec

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/reprieve-dev/reprieve/engine"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
	"github.com/reprieve-dev/reprieve/store"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestEveryFieldComesBack fails for a field that the engine has and the codec does not know.
func TestEveryFieldComesBack(t *testing.T) {
	bytesOf := must[[]byte](t)
	t.Run("eviction", func(t *testing.T) {
		r := filled[engine.EvictionRecord](t)
		got := must[*engine.EvictionRecord](t)(DecodeEviction(r.Cluster, r.Seq, bytesOf(encodeEviction(r))))
		r.Hold, r.HoldUntil = engine.HoldNone, time.Time{}
		wantEqual(t, r, got)
	})
	t.Run("node", func(t *testing.T) {
		r := filled[engine.NodeRecord](t)
		wantEqual(t, r, must[*engine.NodeRecord](t)(DecodeNode(r.Cluster, r.Name, bytesOf(EncodeNode(r)))))
	})
	t.Run("reprieve", func(t *testing.T) {
		r := filled[engine.ReprieveRecord](t)
		wantEqual(t, r, must[*engine.ReprieveRecord](t)(DecodeReprieve(r.Cluster, r.UID, bytesOf(EncodeReprieve(r)))))
	})
	t.Run("cluster", func(t *testing.T) {
		r := filled[engine.ClusterRecord](t)
		wantEqual(t, r, must[*engine.ClusterRecord](t)(DecodeCluster(r.Name, bytesOf(EncodeCluster(r)))))
	})
}

func wantEqual(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEveryStoredFieldIsWritten fails for a field of the messages that nobody writes.
func TestEveryStoredFieldIsWritten(t *testing.T) {
	bytesOf := must[[]byte](t)
	// No eviction has all fields: what is short in one is long in another.
	both := bytesOf(encodeEviction(evictions(t)["short"]))
	both = append(both, bytesOf(encodeEviction(evictions(t)["beyond"]))[frameSize:]...)
	for _, c := range []struct {
		value []byte
		m     proto.Message
	}{
		{both, &storev1.EvictionRecord{}},
		{bytesOf(EncodeNode(filled[engine.NodeRecord](t))), &storev1.NodeRecord{}},
		{bytesOf(EncodeReprieve(filled[engine.ReprieveRecord](t))), &storev1.ReprieveRecord{}},
		{bytesOf(EncodeCluster(filled[engine.ClusterRecord](t))), &storev1.ClusterRecord{}},
	} {
		if err := proto.Unmarshal(c.value[frameSize:], c.m); err != nil {
			t.Fatal(err)
		}
		wantSet(t, c.m.ProtoReflect())
	}
}

func wantSet(t *testing.T, m protoreflect.Message) {
	t.Helper()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !strings.HasPrefix(string(f.FullName()), "reprieve.") {
			continue
		}
		switch {
		case !m.Has(f):
			t.Errorf("%s is never written", f.FullName())
		case f.IsList() && f.Message() != nil:
			wantSet(t, m.Get(f).List().Get(0).Message())
		case f.Message() != nil:
			wantSet(t, m.Get(f).Message())
		}
	}
}

// TestZeroRecords: what has nothing set comes back so, but for the UID that an eviction must have.
func TestZeroRecords(t *testing.T) {
	bytesOf := must[[]byte](t)
	e := &engine.EvictionRecord{UID: "u"}
	wantEqual(t, e, must[*engine.EvictionRecord](t)(DecodeEviction("", 0, bytesOf(encodeEviction(e)))))
	wantEqual(t, &engine.NodeRecord{}, must[*engine.NodeRecord](t)(DecodeNode("", "", bytesOf(EncodeNode(&engine.NodeRecord{})))))
	wantEqual(t, &engine.ReprieveRecord{}, must[*engine.ReprieveRecord](t)(DecodeReprieve("", "", bytesOf(EncodeReprieve(&engine.ReprieveRecord{})))))
	wantEqual(t, &engine.ClusterRecord{}, must[*engine.ClusterRecord](t)(DecodeCluster("", bytesOf(EncodeCluster(&engine.ClusterRecord{})))))
	for _, n := range []uint64{0, 1, 1<<64 - 1} {
		if got := must[uint64](t)(DecodeNumber(EncodeNumber(n))); got != n {
			t.Errorf("number %d came back as %d", n, got)
		}
	}
}

// TestEnumsAreWhole reads the engine's source: each of its constants must have a stored form.
func TestEnumsAreWhole(t *testing.T) {
	have := engineConstants(t)
	for _, c := range []struct {
		typ    string
		stored int
		unique int
	}{
		{"State", len(states.values) + 1, unique(states.values) + 1},
		{"Outcome", len(outcomes.values), unique(outcomes.values)},
		{"CloseReason", len(closeReasons.values), unique(closeReasons.values)},
		{"CancelCause", len(cancelCauses.values), unique(cancelCauses.values)},
		{"CauseKind", len(causeKinds.values), unique(causeKinds.values)},
		{"RecallReason", len(recallReasons.values), unique(recallReasons.values)},
		{"Mode", len(modes.values), unique(modes.values)},
		{"Method", len(methods.values), unique(methods.values)},
		{"PolicyField", len(policyFields) + 1, unique(policyFields) + 1},
	} {
		if have[c.typ] != c.stored || c.unique != c.stored {
			t.Errorf("engine.%s has %d constants, the codec knows %d (%d different)", c.typ, have[c.typ], c.stored, c.unique)
		}
	}
}

func unique[T comparable](values []T) int {
	set := map[T]bool{}
	for _, v := range values {
		set[v] = true
	}
	return len(set)
}

// engineConstants counts the constants of each of the engine's types.
func engineConstants(t *testing.T) map[string]int {
	files, err := filepath.Glob("../../../engine/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no source of the engine: %v", err)
	}
	counts := map[string]int{}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				countConstants(g, counts)
			}
		}
	}
	return counts
}

func countConstants(g *ast.GenDecl, counts map[string]int) {
	typ := ""
	for _, s := range g.Specs {
		v := s.(*ast.ValueSpec)
		if id, ok := v.Type.(*ast.Ident); ok {
			typ = id.Name
		}
		counts[typ] += len(v.Names)
	}
}

// TestStoredNumbersStay pins what is on disk: these numbers may never change their meaning.
func TestStoredNumbersStay(t *testing.T) {
	for _, c := range []struct{ got, want any }{
		{states.values, []engine.State{0, engine.StateWaiting, engine.StateDelivered, engine.StateRecalling, engine.StateConfirming, engine.StateClosed}},
		{outcomes.values[1:], []engine.Outcome{engine.OutcomeEvicted, engine.OutcomeGone, engine.OutcomeSuperseded, engine.OutcomeStale, engine.OutcomeBlocked, engine.OutcomeDenied, engine.OutcomeFailed, engine.OutcomeRecalled, engine.OutcomeNoAnswer}},
		{closeReasons.values[1:], []engine.CloseReason{engine.CloseEvicted, engine.CloseGone, engine.CloseSuperseded, engine.CloseCancelled, engine.ClosePodDeleted, engine.ClosePodFinished, engine.CloseNodeDeleted, engine.CloseWouldEvict}},
		{cancelCauses.values[1:], []engine.CancelCause{engine.CancelTaintRemoved, engine.CancelToleration, engine.CancelPolicy, engine.CancelRequestWithdrawn, engine.CancelReprieve}},
		{causeKinds.values[1:], []engine.CauseKind{engine.CauseTaint, engine.CauseRequest}},
		{recallReasons.values[1:], []engine.RecallReason{engine.RecallCancelled, engine.RecallPaused, engine.RecallReprieved, engine.RecallShadow, engine.RecallNodeDeleted}},
		{modes.values[1:], []engine.Mode{engine.ModeShadow, engine.ModeEnforce}},
		{methods.values[1:], []engine.Method{engine.MethodDelete, engine.MethodEvict, engine.MethodEvictThenDelete}},
	} {
		// A list may grow at its end.
		got, want := reflect.ValueOf(c.got), reflect.ValueOf(c.want)
		if got.Len() < want.Len() || !reflect.DeepEqual(got.Slice(0, want.Len()).Interface(), c.want) {
			t.Errorf("stored numbers changed:\n got %v\nwant %v", c.got, c.want)
		}
	}
}

func TestUnknownValuesAreNotWritten(t *testing.T) {
	for name, edit := range map[string]func(r *engine.EvictionRecord){
		"state":         func(r *engine.EvictionRecord) { r.State = 99 },
		"outcome":       func(r *engine.EvictionRecord) { r.LastOutcome = 99 },
		"close reason":  func(r *engine.EvictionRecord) { r.CloseReason = 99 },
		"cancel cause":  func(r *engine.EvictionRecord) { r.CancelCause = 99 },
		"cause":         func(r *engine.EvictionRecord) { r.Cause.Kind = 99 },
		"recall reason": func(r *engine.EvictionRecord) { r.Delivery.Recall = 99 },
		"recall cause":  func(r *engine.EvictionRecord) { r.Delivery.RecallCause = 99 },
		"name":          func(r *engine.EvictionRecord) { r.Pod = "\xff" },
	} {
		r := filled[engine.EvictionRecord](t)
		edit(r)
		if _, err := encodeEviction(r); !errors.Is(err, store.ErrBadChange) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]func(p *engine.PolicyPatch){
		"mode":        func(p *engine.PolicyPatch) { p.Mode = 99 },
		"method":      func(p *engine.PolicyPatch) { p.Method = 99 },
		"fields":      func(p *engine.PolicyPatch) { p.Fields = engine.PolicyAllFields + 1 },
		"burst below": func(p *engine.PolicyPatch) { p.Burst = -1 },
		"burst above": func(p *engine.PolicyPatch) { p.Burst = 1 << 32 },
	} {
		r := filled[engine.ClusterRecord](t)
		edit(&r.Policy)
		if _, err := EncodeCluster(r); !errors.Is(err, store.ErrBadChange) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBadTextIsMended: what people write must not keep a batch from the disk.
func TestBadTextIsMended(t *testing.T) {
	r := filled[engine.EvictionRecord](t)
	r.LastMessage, r.Requests[0].Reason = "cut \xe6\xbc", "a\xffb"
	got := must[*engine.EvictionRecord](t)(DecodeEviction("a", 1, must[[]byte](t)(encodeEviction(r))))
	if got.LastMessage != "cut \uFFFD" || got.Requests[0].Reason != "a\uFFFDb" {
		t.Errorf("message %q, reason %q", got.LastMessage, got.Requests[0].Reason)
	}
}

// TestDamageIsFound flips each bit and cuts at each length of a value.
func TestDamageIsFound(t *testing.T) {
	good := must[[]byte](t)(encodeEviction(filled[engine.EvictionRecord](t)))
	refused := func(b []byte, what string, i int) {
		t.Helper()
		if _, err := DecodeEviction("a", 1, b); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s %d: %v", what, i, err)
		}
	}
	for i := range len(good) * 8 {
		b := slices.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		refused(b, "bit", i)
	}
	for i := range good {
		refused(good[:i], "cut at", i)
	}
	refused(append(slices.Clone(good), 0), "tail of", 1)
	refused(nil, "no value", 0)
}

func TestWrongContentIsDamage(t *testing.T) {
	sealed := func(kind Kind, m proto.Message) []byte { return must[[]byte](t)(marshal(kind, m)) }
	garbage := seal(KindNode, append(make([]byte, frameSize), 0xff, 0xff, 0xff))
	for name, err := range map[string]error{
		"eviction where a node belongs":  second(DecodeNode("a", "n", sealed(KindEviction, &storev1.EvictionRecord{}))),
		"no protobuf in the frame":       second(DecodeNode("a", "n", garbage)),
		"reprieve of garbage":            second(DecodeReprieve("a", "u", garbage)),
		"cluster of garbage":             second(DecodeCluster("a", garbage)),
		"eviction without UID":           second(DecodeEviction("a", 1, sealed(KindEviction, &storev1.EvictionRecord{}))),
		"unknown state":                  second(DecodeEviction("a", 1, sealed(KindEviction, &storev1.EvictionRecord{Uid: "u", State: 6}))),
		"unknown recall reason":          second(DecodeEviction("a", 1, sealed(KindEviction, &storev1.EvictionRecord{Uid: "u", Delivery: &storev1.DeliveryRecord{Recall: 1 << 31}}))),
		"unknown mode":                   second(DecodeCluster("a", sealed(KindCluster, &storev1.ClusterRecord{Policy: &storev1.PolicyRecord{Mode: 3}}))),
		"unknown policy field":           second(DecodeCluster("a", sealed(KindCluster, &storev1.ClusterRecord{Policy: &storev1.PolicyRecord{Fields: 1 << 14}}))),
		"number that is too short":       second(DecodeNumber(seal(KindNumber, make([]byte, frameSize+7)))),
		"number of nothing":              second(DecodeNumber(nil)),
		"sequence key of another length": second(ParseSeqKey([]byte("1234567"))),
	} {
		if !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, k := range [][]byte{nil, make([]byte, HistoryKeySize-1), make([]byte, HistoryKeySize+1), bytes.Repeat([]byte{2}, HistoryKeySize)} {
		if _, _, err := ParseHistoryKey(k); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("history key %x: %v", k, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

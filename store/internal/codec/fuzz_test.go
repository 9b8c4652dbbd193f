package codec

import (
	"bytes"
	"cmp"
	"errors"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/history"
	"github.com/reprieve-dev/reprieve/store/internal/record"
	"pgregory.net/rapid"
)

// FuzzDecodeRecord decodes any bytes, as they are and with a good frame around
// them. What decodes must be encoded again and come back the same; what does
// not must be called damaged.
func FuzzDecodeRecord(f *testing.F) {
	bytesOf := must[[]byte](f)
	for _, b := range [][]byte{
		bytesOf(encodeEviction(filled[engine.EvictionRecord](f))),
		bytesOf(encodeEviction(&engine.EvictionRecord{UID: "u"})),
		bytesOf(EncodeNode(filled[engine.NodeRecord](f))),
		bytesOf(EncodeReprieve(filled[engine.ReprieveRecord](f))),
		bytesOf(EncodeCluster(filled[engine.ClusterRecord](f))),
		EncodeNumber(7),
	} {
		f.Add(b)
		f.Add(b[frameSize:])
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte{})
	f.Add([]byte("apiVersion: v1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		decodeAll(t, func(Kind) []byte { return b })
		decodeAll(t, func(k Kind) []byte { return seal(k, append(make([]byte, frameSize), b...)) })
	})
}

func decodeAll(t *testing.T, value func(Kind) []byte) {
	again(t, value(KindEviction), func(b []byte) (*engine.EvictionRecord, error) { return DecodeEviction("a", 1, b) }, encodeEviction, record.Eviction)
	again(t, value(KindNode), func(b []byte) (*engine.NodeRecord, error) { return DecodeNode("a", "n", b) }, EncodeNode, record.Node)
	again(t, value(KindReprieve), func(b []byte) (*engine.ReprieveRecord, error) { return DecodeReprieve("a", "u", b) }, EncodeReprieve, record.Reprieve)
	again(t, value(KindCluster), func(b []byte) (*engine.ClusterRecord, error) { return DecodeCluster("a", b) }, EncodeCluster, record.Cluster)
	again(t, value(KindNumber), func(b []byte) (uint64, error) { return DecodeNumber(b) },
		func(n uint64) ([]byte, error) { return EncodeNumber(n), nil }, func(n uint64) uint64 { return n })
}

func again[R any](t *testing.T, b []byte, decode func([]byte) (R, error), encode func(R) ([]byte, error), stored func(R) R) {
	t.Helper()
	r, err := decode(b)
	if err != nil {
		if !errors.Is(err, store.ErrDamaged) {
			t.Fatalf("decode: %v", err)
		}
		return
	}
	b, err = encode(r)
	if err != nil {
		t.Fatalf("encode what was decoded: %v", err)
	}
	back, err := decode(b)
	if err != nil {
		t.Fatalf("decode what was encoded: %v", err)
	}
	if diff := gocmp.Diff(stored(r), back, cmpopts.EquateEmpty(), cmpopts.EquateNaNs()); diff != "" {
		t.Fatalf("came back different (-want +got):\n%s", diff)
	}
}

// FuzzKeyCodec: keys come back, sort as what they stand for, and what is no key is refused.
func FuzzKeyCodec(f *testing.F) {
	f.Add(byte(0), int64(0), uint64(0), int64(-1), uint64(1), []byte{})
	f.Add(byte(1), int64(1)<<62, uint64(1)<<63, int64(-1)<<63, uint64(1), HistoryKey(history.Early, history.Position{ClosedAt: 5, Seq: 6}))
	f.Add(byte(2), int64(7), uint64(8), int64(7), uint64(9), SeqKey(258))
	f.Add(byte(1), int64(7), uint64(8), int64(7), uint64(9), []byte(history.Cursor(history.Position{ClosedAt: 5, Seq: 6})))
	f.Fuzz(func(t *testing.T, class byte, at int64, seq uint64, otherAt int64, otherSeq uint64, raw []byte) {
		checkKeys(t, history.Class(class%history.Classes), history.Position{ClosedAt: at, Seq: seq}, history.Position{ClosedAt: otherAt, Seq: otherSeq})
		if c, p, err := ParseHistoryKey(raw); err == nil && !bytes.Equal(HistoryKey(c, p), raw) {
			t.Errorf("key %x is taken for %v, whose key is %x", raw, p, HistoryKey(c, p))
		}
		if n, err := ParseSeqKey(raw); err == nil && !bytes.Equal(SeqKey(n), raw) {
			t.Errorf("key %x is taken for sequence %d", raw, n)
		}
		q, err := history.Parse(engine.HistoryQuery{Cluster: "a", Limit: 1, Cursor: string(raw)})
		switch {
		case err != nil && !errors.Is(err, engine.ErrInvalid):
			t.Errorf("cursor %q: %v", raw, err)
		case err == nil && len(raw) > 0 && history.Cursor(q.Below) != string(raw):
			t.Errorf("cursor %q is taken for %v", raw, q.Below)
		}
	})
}

// fataler is what a test and a property have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func checkKeys(t fataler, class history.Class, a, b history.Position) {
	t.Helper()
	ka, kb := HistoryKey(class, a), HistoryKey(class, b)
	if c, p, err := ParseHistoryKey(ka); err != nil || c != class || p != a {
		t.Fatalf("%v of class %d came back as %v of class %d, error %v", a, class, p, c, err)
	}
	if bytes.Compare(ka, kb) != a.Compare(b) {
		t.Fatalf("%v and %v compare as %d, their keys as %d", a, b, a.Compare(b), bytes.Compare(ka, kb))
	}
	if bytes.Compare(HistoryKey(history.Sent, a), HistoryKey(history.Early, b)) >= 0 {
		t.Fatalf("the early %v sorts before the sent %v", b, a)
	}
	if n, err := ParseSeqKey(SeqKey(a.Seq)); err != nil || n != a.Seq {
		t.Fatalf("sequence %d came back as %d, error %v", a.Seq, n, err)
	}
	if bytes.Compare(SeqKey(a.Seq), SeqKey(b.Seq)) != cmp.Compare(a.Seq, b.Seq) {
		t.Fatalf("keys of sequences %d and %d sort wrongly", a.Seq, b.Seq)
	}
}

// TestKeysSort draws times of both signs and close to each other.
func TestKeysSort(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := history.Position{ClosedAt: rapid.Int64().Draw(rt, "at"), Seq: rapid.Uint64().Draw(rt, "seq")}
		b := a
		switch rapid.IntRange(0, 2).Draw(rt, "other") {
		case 0:
			b = history.Position{ClosedAt: rapid.Int64().Draw(rt, "other at"), Seq: rapid.Uint64().Draw(rt, "other seq")}
		case 1:
			b.Seq += uint64(rapid.IntRange(0, 300).Draw(rt, "steps"))
		default:
			b.ClosedAt += int64(rapid.IntRange(0, 300).Draw(rt, "nanoseconds"))
		}
		checkKeys(rt, history.Class(rapid.IntRange(0, history.Classes-1).Draw(rt, "class")), a, b)
	})
}

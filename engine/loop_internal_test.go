package engine

import (
	"testing"
	"time"
)

// TestFullLoopsAreNotSearched: with as many owners as are followed, an order does
// not go through them before one may be forgotten; from then on a new one is followed.
func TestFullLoopsAreNotSearched(t *testing.T) {
	n := &node{name: "n"}
	sc := &shardCluster{}
	n.sc = sc
	sent := func(owner int, at time.Time) {
		p := &pod{node: n, owner: uint64(owner)}
		sc.sentFrom(&eviction{pod: p, grounds: &grounds{cause: Cause{Kind: CauseTaint}}}, at)
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range maxLoops {
		sent(i, start.Add(time.Duration(i)*time.Millisecond))
	}
	followed := func(owner int) bool { return sc.loops[loopKey{n, uint64(owner)}] != nil }
	full := start.Add(maxLoops * time.Millisecond)
	sent(maxLoops, full)
	if followed(maxLoops) || len(sc.loops) != maxLoops {
		t.Fatalf("%d owners are followed, want %d", len(sc.loops), maxLoops)
	}
	first := start.Add(loopQuiet)
	if !sc.loopsEnd.Equal(first) {
		t.Fatalf("searched again from %s on, want %s, when the first has been quiet", sc.loopsEnd, first)
	}
	// What is still at it moves no end forward.
	sent(1, full)
	sent(maxLoops, first)
	if followed(0) || !followed(1) || !followed(maxLoops) {
		t.Error("the first to be quiet did not make room for a new owner")
	}
	if want := first.Add(2 * time.Millisecond); !sc.loopsEnd.Equal(want) {
		t.Errorf("searched again from %s on, want %s", sc.loopsEnd, want)
	}
}

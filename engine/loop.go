package engine

import (
	"fmt"
	"hash/fnv"
	"time"
)

const (
	// freeLoops is how many times an owner's pods may be evicted from a node and
	// come back before they have to wait; loopBackOff is the first wait, doubled
	// each time up to maxBackOff.
	freeLoops        = 3
	firstLoopBackOff = 10 * time.Second
	// loopQuiet without an eviction forgets an owner. It is longer than maxBackOff.
	loopQuiet = 10 * time.Minute
	// maxLoops bounds the owners that a shard remembers of a cluster. Beyond it
	// new ones are not followed.
	maxLoops = 10_000
	// maxWave keeps a count within its type; the waits have long stopped growing.
	maxWave = 16
)

// loop is an owner whose pods were evicted from a node: perhaps it puts another
// there each time, as a pinned Deployment does. It is not stored: after a
// restart an owner has its free evictions again. The wait of a pod that waits is
// its eviction's back-off and is.
type loop struct {
	// waves counts evictions of pods that came after the eviction before. Pods that
	// were there together are one wave, so that draining many replicas is no loop.
	waves  uint8
	lastAt time.Time
}

type loopKey struct {
	node  *node
	owner uint64
}

// comesBack notes, of a pod seen for the first time, which evictions it comes after.
func (s *shard) comesBack(sc *shardCluster, p *pod, seen *Pod) {
	h := fnv.New64a()
	// Writes to a hash do not fail.
	if seen.Owner != "" {
		_, _ = h.Write([]byte(seen.Owner))
	} else {
		_, _ = h.Write([]byte(p.namespace.Value() + "/" + p.name))
	}
	p.owner = h.Sum64()
	if l := sc.loops[loopKey{p.node, p.owner}]; l != nil && !l.over(s.now) {
		p.wave = l.waves
	}
}

func (l *loop) over(now time.Time) bool { return now.Sub(l.lastAt) >= loopQuiet }

// sentFrom counts an order for a taint.
func (sc *shardCluster) sentFrom(e *eviction, now time.Time) {
	p := e.pod
	if e.cause().Kind != CauseTaint || p.gone {
		return
	}
	key := loopKey{p.node, p.owner}
	l := sc.loops[key]
	switch {
	case l == nil:
		if len(sc.loops) >= maxLoops {
			sc.forgetLoops(now)
		}
		if len(sc.loops) >= maxLoops {
			return
		}
		if sc.loops == nil {
			sc.loops = map[loopKey]*loop{}
		}
		l = &loop{waves: 1}
		sc.loops[key] = l
	case l.over(now):
		l.waves = 1
	case l.waves == p.wave:
		l.waves = min(l.waves+1, maxWave)
	}
	l.lastAt = now
}

// loopBackOff is the instant before which a pod that came back is not evicted again.
func (sc *shardCluster) loopBackOff(p *pod, cause *Cause) time.Time {
	if p.wave < freeLoops || cause.Kind != CauseTaint {
		return time.Time{}
	}
	l := sc.loops[loopKey{p.node, p.owner}]
	if l == nil {
		return time.Time{}
	}
	return l.lastAt.Add(min(firstLoopBackOff<<(p.wave-freeLoops), maxBackOff))
}

// forgetLoops drops owners that have been quiet. It goes through all of them only
// once one of them may have been: with maxLoops of them each order calls it.
func (sc *shardCluster) forgetLoops(now time.Time) {
	if now.Before(sc.loopsEnd) {
		return
	}
	sc.loopsEnd = now.Add(loopQuiet)
	for key, l := range sc.loops {
		if l.over(now) {
			delete(sc.loops, key)
		} else if end := l.lastAt.Add(loopQuiet); end.Before(sc.loopsEnd) {
			sc.loopsEnd = end
		}
	}
}

// looping counts owners that have to wait.
func (sc *shardCluster) looping(now time.Time) (n int) {
	for _, l := range sc.loops {
		if l.waves >= freeLoops && !l.over(now) {
			n++
		}
	}
	return n
}

// loopWarning tells of a pod that came back too often.
func (sc *shardCluster) loopWarning(p *pod, now time.Time) []string {
	l := sc.loops[loopKey{p.node, p.owner}]
	if l == nil || l.over(now) || p.wave < freeLoops {
		return nil
	}
	return []string{fmt.Sprintf("pods of the same owner were evicted from node %s %d times in a row and came back; "+
		"each further eviction waits longer, up to %s", p.node.name, p.wave, maxBackOff)}
}

package engine

import (
	"maps"
	"slices"
	"time"
)

// over reports whether the pause has ended by itself.
func (q *Pause) over(now time.Time) bool { return !q.Until.IsZero() && !q.Until.After(now) }

func (r *ReprieveRecord) over(now time.Time) bool { return !r.Until.After(now) }

// armExpiry sets the timer for the next pause or reprieve that ends by itself. mu is held.
func (cl *cluster) armExpiry() {
	var next time.Time
	consider := func(until time.Time) {
		if !until.IsZero() && (next.IsZero() || until.Before(next)) {
			next = until
		}
	}
	for i := range cl.conf.pauses {
		consider(cl.conf.pauses[i].Until)
	}
	for _, r := range cl.conf.reprieves {
		consider(r.Until)
	}
	if next.IsZero() {
		cl.expiry.Stop()
		return
	}
	cl.expiry.Reset(next)
}

// expire removes the pauses and reprieves that are over, from the disk too.
// Shards need not be told: they look at the end of each themselves, and have the
// shorter lists with the next barrier.
func (cl *cluster) expire() {
	cl.core.activity.add(1)
	defer cl.core.activity.done(1)
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.over() != nil {
		// A forgotten cluster has nothing on disk, and is not to be written again.
		return
	}
	now := cl.core.clock.Now()
	conf := *cl.conf
	conf.pauses = slices.DeleteFunc(slices.Clone(conf.pauses), func(q Pause) bool { return q.over(now) })
	var changes []Change
	if len(conf.pauses) < len(cl.conf.pauses) {
		cl.rec.Pauses = conf.pauses
		changes = append(changes, cl.record())
	}
	conf.reprieves = maps.Clone(conf.reprieves)
	for uid, r := range conf.reprieves {
		if r.over(now) {
			delete(conf.reprieves, uid)
			changes = append(changes, deleteReprieve(cl.name, uid))
		}
	}
	cl.conf = &conf
	if len(changes) > 0 {
		cl.core.commit(nil, changes...)
	}
	cl.armExpiry()
}

func deleteReprieve(cluster, uid string) Change {
	return Change{Kind: ChangeDeleteReprieve, Cluster: cluster, Reprieve: &ReprieveRecord{Cluster: cluster, UID: uid}}
}

// reprieveDropped forgets a reprieve that went from the disk with its pod, unless
// another was granted since.
func (cl *cluster) reprieveDropped(dropped *ReprieveRecord) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.conf.reprieves[dropped.UID] != dropped {
		return
	}
	conf := *cl.conf
	conf.reprieves = maps.Clone(conf.reprieves)
	delete(conf.reprieves, dropped.UID)
	cl.conf = &conf
	cl.armExpiry()
}

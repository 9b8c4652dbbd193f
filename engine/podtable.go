package engine

import "hash/maphash"

// podTable has a cluster's pods, found by UID and by name. There may be a
// million: what finds them has no pointers, so that a round of the garbage
// collector meets the pods in the order in which they came, which caches like,
// and not in a map's.
type podTable struct {
	pods  []*pod // nil where one has left
	free  []int32
	uids  podIndex[string]
	names podIndex[podName]
}

type podName struct{ namespace, name string }

func newPodTable() *podTable {
	t := &podTable{}
	seed := maphash.MakeSeed()
	t.uids = newPodIndex(
		func(uid string) uint32 { return uint32(maphash.String(seed, uid)) },
		func(place int32) string { return t.pods[place].uid },
	)
	t.names = newPodIndex(
		func(n podName) uint32 { return uint32(maphash.Comparable(seed, n)) },
		func(place int32) podName { return t.pods[place].fullName() },
	)
	return t
}

func (t *podTable) len() int { return len(t.pods) - len(t.free) }

// byUID returns the pod that has the UID, nil if none has.
func (t *podTable) byUID(uid string) *pod {
	if place, ok := t.uids.get(uid); ok {
		return t.pods[place]
	}
	return nil
}

// byName returns the pod that has the name, nil if none has.
func (t *podTable) byName(namespace, name string) *pod {
	if place, ok := t.names.get(podName{namespace, name}); ok {
		return t.pods[place]
	}
	return nil
}

// add puts a pod in whose UID is new. Its name is its own, whoever had it before.
func (t *podTable) add(p *pod) {
	var place int32
	if last := len(t.free) - 1; last >= 0 {
		place, t.free = t.free[last], t.free[:last]
		t.pods[place] = p
	} else {
		place = int32(len(t.pods))
		t.pods = append(t.pods, p)
	}
	t.uids.put(p.uid, place)
	t.names.put(p.fullName(), place)
}

// remove takes a pod out, and its name if it is still its own.
func (t *podTable) remove(p *pod) {
	place, ok := t.uids.get(p.uid)
	if !ok || t.pods[place] != p {
		return
	}
	t.uids.drop(p.uid)
	if named, ok := t.names.get(p.fullName()); ok && named == place {
		t.names.drop(p.fullName())
	}
	t.pods[place] = nil
	t.free = append(t.free, place)
}

// podIndex leads from keys to the places of pods, by a hash of 32 bits.
type podIndex[K comparable] struct {
	hash func(K) uint32
	// key is that of the pod in a place.
	key    func(place int32) K
	places map[uint32]int32
	// apart are those whose hash another has: of a million about a hundred.
	apart map[K]int32
}

func newPodIndex[K comparable](hash func(K) uint32, key func(int32) K) podIndex[K] {
	return podIndex[K]{hash: hash, key: key, places: map[uint32]int32{}, apart: map[K]int32{}}
}

func (x *podIndex[K]) get(k K) (place int32, ok bool) {
	if place, ok = x.places[x.hash(k)]; ok && x.key(place) == k {
		return place, true
	}
	place, ok = x.apart[k]
	return place, ok
}

// put leads k to a place, wherever it led before.
func (x *podIndex[K]) put(k K, place int32) {
	h := x.hash(k)
	had, taken := x.places[h]
	if _, apart := x.apart[k]; apart || taken && x.key(had) != k {
		x.apart[k] = place
		return
	}
	x.places[h] = place
}

func (x *podIndex[K]) drop(k K) {
	if _, apart := x.apart[k]; apart {
		delete(x.apart, k)
		return
	}
	delete(x.places, x.hash(k))
}

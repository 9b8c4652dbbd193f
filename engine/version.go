package engine

// Version is an eviction as one change left it. It takes little room, so that a
// change costs little until somebody wants to read it, and shares with other
// versions what they have in common. Once handed to a store it never changes.
type Version struct {
	// ev is read only for what of it never changes.
	ev      *eviction
	grounds *grounds
	// rest is nil for most; it is the version's own.
	rest        *evictionRest
	boundAt     instant
	closedAt    instant
	revision    uint64
	state       State
	hold        Hold
	closeReason CloseReason
	cancelCause CancelCause
}

// Seq implements [EvictionVersion].
func (v *Version) Seq() uint64 { return v.ev.seq() }

// UID implements [EvictionVersion].
func (v *Version) UID() string { return v.ev.pod.uid }

// Record returns the version as a record of its own. What the record points to
// is shared and must not be changed.
func (v *Version) Record() *EvictionRecord {
	r := &EvictionRecord{}
	v.Fill(r)
	return r
}

// Fill implements [EvictionVersion]: it is Record into room that the caller has.
func (v *Version) Fill(r *EvictionRecord) {
	e, g := v.ev, v.grounds
	p := e.pod
	*r = EvictionRecord{
		Cluster: g.node.sc.name, Seq: e.seq(), Namespace: p.namespace.Value(), Pod: p.name, UID: p.uid, Node: g.node.name, NodeUID: g.nodeUID,
		State: v.state, Hold: v.hold, BoundAt: v.boundAt.time(), Due: g.due, Cause: g.cause, OpenedAt: e.openedAt.time(),
		ClosedAt: v.closedAt.time(), CloseReason: v.closeReason, CancelCause: v.cancelCause, Revision: v.revision,
	}
	if m := v.rest; m != nil {
		r.Delivery, r.Attempts, r.NoAnswers = m.delivery, m.attempts, m.noAnswers
		r.NotBefore, r.LastOutcome = m.notBefore.time(), m.lastOutcome
		r.FirstSentAt, r.LastSentAt = m.firstSentAt.time(), m.lastSentAt.time()
		r.ResultAt, r.ConfirmBy = m.resultAt.time(), m.confirmBy.time()
		if u := m.uncommon; u != nil {
			r.Requests, r.HoldUntil, r.LastMessage = u.requests, u.holdUntil, u.lastMessage
			r.FirstDue, r.Observed = u.firstDue, u.observed
		}
	}
}

// versionChunk is how many versions are allocated at once. Those of a chunk go
// the same way one after the other. So many fill 4 KiB.
const versionChunk = 73

// version returns the eviction as it stands, for the store and for readers.
func (s *shard) version(e *eviction) *Version {
	v := s.roomForVersion()
	e.version(v)
	return v
}

// lastVersion is version of an eviction that closes. What few evictions have
// becomes the version's, unless it may yet be read.
func (s *shard) lastVersion(e *eviction) *Version {
	if e.rest == nil || len(e.requests()) > 0 {
		// Who asked for an eviction may yet read it. Of others only the version is read,
		// and lists may have them until they are swept.
		return s.version(e)
	}
	v := s.roomForVersion()
	e.peek(v)
	e.rest.link, e.rest.permit = nil, nil
	e.rest = nil
	return v
}

func (s *shard) roomForVersion() *Version {
	if len(s.versions) == 0 {
		s.versions = make([]Version, versionChunk)
	}
	v := &s.versions[0]
	s.versions = s.versions[1:]
	return v
}

// peek makes v the eviction as it stands, until it changes.
func (e *eviction) peek(v *Version) {
	if uid := e.pod.node.uid; e.grounds.nodeUID != uid {
		// The node is gone, or another of its name has come.
		g := *e.grounds
		g.nodeUID = uid
		e.grounds = &g
	}
	*v = Version{ev: e, grounds: e.grounds, boundAt: e.pod.boundAt, revision: e.revision, state: e.state, hold: e.hold}
	if e.rest != nil {
		v.rest = &e.rest.evictionRest
	}
}

// version makes v the eviction as it stands.
func (e *eviction) version(v *Version) {
	e.peek(v)
	if v.rest != nil {
		rest := *v.rest
		v.rest = &rest
	}
}

// fill makes r the eviction as it stands. What r points to is shared.
func (e *eviction) fill(r *EvictionRecord) {
	var v Version
	e.peek(&v)
	v.Fill(r)
}

// record returns the eviction as it stands, for readers.
func (e *eviction) record() *EvictionRecord {
	r := &EvictionRecord{}
	e.fill(r)
	return r
}

package timeline

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
)

// The bounds of the contract (and of Kubernetes) for what names an object.
const (
	maxName      = 253
	maxNamespace = 63
	maxUID       = 128
)

// UIDs remembers which name a UID was seen under. It may be shared by readers
// of several goroutines.
type UIDs struct {
	mu    sync.Mutex // guards names
	names map[string]string
}

// NewUIDs returns an empty memory.
func NewUIDs() *UIDs { return &UIDs{names: map[string]string{}} }

// see records a UID's name. It returns the other name it is known under, if
// any, and whether it was not known before.
func (u *UIDs) see(cluster, uid, name string, gone bool) (other string, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := cluster + "\x00" + uid
	was, known := u.names[key]
	switch {
	case known && was != name:
		return was, false
	case gone:
		delete(u.names, key)
	default:
		u.names[key] = name
	}
	return "", !known
}

// checkIdentity sees to it that an object has a name and a UID of its own.
func (r *Reader) checkIdentity(o *object, e *Entry) error {
	m := &o.Metadata
	if o.Kind == "Pod" && m.Namespace == "" {
		m.Namespace = "default"
	}
	if err := checkNames(o); err != nil {
		return &Error{Pos: e.Pos, Reason: err.Error()}
	}
	if o.Kind == "Lease" {
		return nil // Its name is the node's, and nobody asks which Lease of the name it is.
	}
	name, derived := o.called(), m.UID == ""
	if derived {
		if r.opts.MissingUID == RefuseMissingUID {
			return &Error{Pos: e.Pos, Reason: name + " has no metadata.uid", Hint: "a UID is what tells a pod from its replacement; feed objects as the API server has them"}
		}
		m.UID = deriveUID(o)
	}
	other, first := r.opts.UIDs.see(e.Cluster, m.UID, name, e.Type == Deleted)
	if other != "" {
		return &Error{Pos: e.Pos, Reason: fmt.Sprintf("UID %s is %s and %s", m.UID, other, name), Hint: "a UID has one name for ever; the input mixes clusters or was edited"}
	}
	if derived && first {
		r.opts.Warn(Warning{Pos: e.Pos, Text: name + " has no metadata.uid; using " + m.UID})
	}
	return nil
}

func checkNames(o *object) error {
	m := &o.Metadata
	switch {
	case m.Name == "":
		return fmt.Errorf("%s without metadata.name", o.Kind)
	case len(m.Name) > maxName:
		return fmt.Errorf("metadata.name of a %s has %d characters; %d are allowed", o.Kind, len(m.Name), maxName)
	case len(m.Namespace) > maxNamespace:
		return fmt.Errorf("metadata.namespace of a %s has %d characters; %d are allowed", o.Kind, len(m.Namespace), maxNamespace)
	case len(m.UID) > maxUID:
		return fmt.Errorf("metadata.uid of %s has %d characters; %d are allowed", o.called(), len(m.UID), maxUID)
	}
	return nil
}

// deriveUID makes a UID of kind, namespace and name: the same for the same
// object, another for any other.
func deriveUID(o *object) string {
	uid := "derived-" + strings.ToLower(o.Kind) + "-" + o.Metadata.Name
	if o.Kind == "Pod" {
		// A slash, because namespaces and names have hyphens themselves.
		uid = "derived-pod-" + o.Metadata.Namespace + "/" + o.Metadata.Name
	}
	if len(uid) > maxUID {
		sum := sha256.Sum256([]byte(uid))
		uid = "derived-" + strings.ToLower(o.Kind) + "-" + hex.EncodeToString(sum[:16])
	}
	return uid
}

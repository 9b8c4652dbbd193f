package store

import (
	"fmt"

	"github.com/reprieve-dev/reprieve/engine"
)

// CheckChange tells whether a change has what its kind needs. Backends call it
// before they apply one, so that they agree on what they refuse. Its errors wrap [ErrBadChange].
func CheckChange(c *engine.Change) error {
	if c.Cluster == "" {
		return fmt.Errorf("%w: it names no cluster", ErrBadChange)
	}
	switch c.Kind {
	case engine.ChangeNotify, engine.ChangeForgetCluster:
	case engine.ChangePutEviction, engine.ChangeCloseEviction:
		if c.Eviction == nil || c.Eviction.Seq() == 0 || c.Eviction.UID() == "" {
			return fmt.Errorf("%w: its eviction lacks a sequence or a UID", ErrBadChange)
		}
	case engine.ChangePutNode, engine.ChangeDeleteNode:
		if c.Node == nil || c.Node.Name == "" {
			return fmt.Errorf("%w: its node has no name", ErrBadChange)
		}
	case engine.ChangePutHealth, engine.ChangeDeleteHealth:
		if c.Health == nil || c.Health.Name == "" {
			return fmt.Errorf("%w: its node's health has no name", ErrBadChange)
		}
	case engine.ChangePutReprieve, engine.ChangeDeleteReprieve:
		if c.Reprieve == nil || c.Reprieve.UID == "" {
			return fmt.Errorf("%w: its reprieve has no UID", ErrBadChange)
		}
	case engine.ChangePutCluster:
		if c.Record == nil {
			return fmt.Errorf("%w: it has no cluster record", ErrBadChange)
		}
	default:
		return fmt.Errorf("%w: kind %d is not known", ErrBadChange, c.Kind)
	}
	return nil
}

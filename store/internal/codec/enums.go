package codec

import (
	"fmt"
	"slices"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	"github.com/reprieve-dev/reprieve/store"
)

// enum gives each value of an engine type the number that is stored for it: its
// place in the list. The engine may order its constants as it likes; a list
// here only ever grows at its end.
type enum[T ~uint8] struct {
	name   string
	values []T
}

// number is what is stored for v.
func (e enum[T]) number(v T) (uint32, error) {
	i := slices.Index(e.values, v)
	if i < 0 {
		return 0, fmt.Errorf("%w: %s %d has no stored form", store.ErrBadChange, e.name, v)
	}
	return uint32(i), nil
}

// value is what the stored number means.
func (e enum[T]) value(n uint32) (T, error) {
	if uint64(n) >= uint64(len(e.values)) {
		return 0, fmt.Errorf("%w: %s %d is not known", store.ErrDamaged, e.name, n)
	}
	return e.values[n], nil
}

var (
	// states lacks StateDue, which is stored as StateWaiting.
	states = enum[engine.State]{"state", []engine.State{
		engine.StateUnspecified, engine.StateWaiting, engine.StateDelivered, engine.StateRecalling,
		engine.StateConfirming, engine.StateClosed,
	}}
	outcomes = enum[engine.Outcome]{"outcome", []engine.Outcome{
		engine.OutcomeUnspecified, engine.OutcomeEvicted, engine.OutcomeGone, engine.OutcomeSuperseded,
		engine.OutcomeStale, engine.OutcomeBlocked, engine.OutcomeDenied, engine.OutcomeFailed,
		engine.OutcomeRecalled, engine.OutcomeNoAnswer, engine.OutcomeApplied,
	}}
	closeReasons = enum[engine.CloseReason]{"close reason", []engine.CloseReason{
		engine.CloseUnspecified, engine.CloseEvicted, engine.CloseGone, engine.CloseSuperseded,
		engine.CloseCancelled, engine.ClosePodDeleted, engine.ClosePodFinished, engine.CloseNodeDeleted,
		engine.CloseWouldEvict,
	}}
	cancelCauses = enum[engine.CancelCause]{"cause of cancellation", []engine.CancelCause{
		engine.CancelUnspecified, engine.CancelTaintRemoved, engine.CancelToleration, engine.CancelPolicy,
		engine.CancelRequestWithdrawn, engine.CancelReprieve, engine.CancelRejected,
	}}
	causeKinds = enum[engine.CauseKind]{"kind of cause", []engine.CauseKind{
		engine.CauseNone, engine.CauseTaint, engine.CauseRequest,
	}}
	recallReasons = enum[engine.RecallReason]{"recall reason", []engine.RecallReason{
		engine.RecallNone, engine.RecallCancelled, engine.RecallPaused, engine.RecallReprieved,
		engine.RecallShadow, engine.RecallNodeDeleted,
	}}
	standings = enum[engine.Standing]{"standing", []engine.Standing{
		engine.StandingUnspecified, engine.StandingLeaves, engine.StandingNoTaint, engine.StandingTolerated,
		engine.StandingOverflow, engine.StandingIgnored, engine.StandingUnscheduled, engine.StandingTerminating,
		engine.StandingFinished, engine.StandingMirror, engine.StandingNamespace, engine.StandingNodeUnknown,
	}}
	// GuardPending is never stored.
	guardMarks = enum[engine.GuardMark]{"mark", []engine.GuardMark{
		engine.GuardClear, engine.GuardHeld, engine.GuardRejected,
	}}
	modes = enum[engine.Mode]{"mode", []engine.Mode{
		engine.ModeUnspecified, engine.ModeShadow, engine.ModeEnforce,
	}}
	methods = enum[engine.Method]{"method", []engine.Method{
		engine.MethodUnspecified, engine.MethodDelete, engine.MethodEvict, engine.MethodEvictThenDelete,
	}}
	nodeHealths = enum[engine.NodeHealth]{"node health", []engine.NodeHealth{
		engine.NodeHealthUnspecified, engine.NodeHealthOff, engine.NodeHealthObserve, engine.NodeHealthEnforce,
	}}
	statuses = enum[health.Status]{"status of a condition", []health.Status{
		health.StatusNone, health.StatusTrue, health.StatusFalse, health.StatusUnknown,
	}}
	// healthTaints gives each taint its stored bit, lowest first.
	healthTaints = enum[health.Taint]{"taint", []health.Taint{
		health.NotReadyNoSchedule, health.NotReadyNoExecute, health.UnreachableNoSchedule, health.UnreachableNoExecute,
		health.MemoryPressure, health.DiskPressure, health.PIDPressure, health.NetworkUnavailable, health.Unschedulable,
	}}
	// policyFields gives each field of a policy its stored bit, lowest first.
	policyFields = []engine.PolicyField{
		engine.PolicyMode, engine.PolicyDefaultNotReady, engine.PolicyDefaultUnreachable,
		engine.PolicyDisableDefaults, engine.PolicyRate, engine.PolicyMethod, engine.PolicyBudgetWait,
		engine.PolicyIgnoredTaintKeys, engine.PolicyExcludedNamespaces, engine.PolicyComparisonOperators,
		engine.PolicyBlastRadius, engine.PolicyDisableBlastRadius, engine.PolicyNodeHealth, engine.PolicyHealthFigures,
	}
)

func encodeFields(set engine.PolicyField) (bits uint32, err error) {
	for i, f := range policyFields {
		if set&f != 0 {
			bits |= 1 << i
			set &^= f
		}
	}
	if set != 0 {
		return 0, fmt.Errorf("%w: policy fields %b have no stored form", store.ErrBadChange, set)
	}
	return bits, nil
}

func decodeFields(bits uint32) (set engine.PolicyField, err error) {
	for i, f := range policyFields {
		if bits&(1<<i) != 0 {
			set |= f
		}
	}
	if bits>>len(policyFields) != 0 {
		return 0, fmt.Errorf("%w: policy fields %b are not known", store.ErrDamaged, bits)
	}
	return set, nil
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/reprieve-dev/reprieve/client"
)

// Exit codes, as the root command's help documents them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitDenied      = 4
	exitUnavailable = 5
)

// usageError is a command line that cannot be run as it stands.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

// noArgs refuses arguments of a command that takes none.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("%q is an argument, and it takes none; see --help", args[0])
}

// errInterrupted is the end that the user asked for before the command had done
// its work.
var errInterrupted = fmt.Errorf("interrupted: %w", context.Canceled)

// silentError ends the program with a code after everything has been said.
type silentError struct{ code int }

func (e *silentError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// hintError adds what to do to an error.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// exitError is an error with an exit code of its own.
type exitError struct {
	err  error
	code int
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// describe turns an error of a command into an exit code and one line for
// people: `reprieve: what: why; hint`.
func describe(command string, err error) (int, string) {
	var silent *silentError
	if errors.As(err, &silent) {
		return silent.code, ""
	}
	code, why, hint := classify(err)
	line := "reprieve: "
	if command != "" {
		line += command + ": "
	}
	line += why
	if hint != "" {
		line += "; " + hint
	}
	return code, cleanText(line)
}

func classify(err error) (code int, why, hint string) {
	var h *hintError
	if errors.As(err, &h) {
		hint = h.hint
	}
	var usage *usageError
	switch {
	case errors.Is(err, context.Canceled):
		return exitFailure, "interrupted", ""
	case errors.As(err, &usage):
		return exitUsage, usage.text, hint
	case isCobraUsage(err):
		return exitUsage, err.Error(), "see --help"
	}
	var coded *exitError
	if errors.As(err, &coded) {
		return coded.code, err.Error(), hint
	}
	e, ok := client.FromError(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return exitUnavailable, "no answer within --timeout", hint
		}
		return exitFailure, err.Error(), hint
	}
	if hint == "" {
		hint = hintFor(e)
	}
	return statusExit(e.Code), withFields(e), hint
}

func statusExit(c codes.Code) int {
	switch c {
	case codes.InvalidArgument:
		return exitUsage
	case codes.NotFound:
		return exitNotFound
	case codes.PermissionDenied, codes.Unauthenticated:
		return exitDenied
	case codes.Unavailable, codes.DeadlineExceeded:
		return exitUnavailable
	default:
		return exitFailure
	}
}

// withFields is an error's message and the field violations of a bad request. A
// message that only repeats these is left out.
func withFields(e *client.Error) string {
	switch {
	case e.Code == codes.DeadlineExceeded && strings.HasPrefix(e.Message, context.DeadlineExceeded.Error()):
		return "no answer in time" // The rest tells what gRPC was waiting for.
	case len(e.Fields) == 0:
		return plainDial(e.Message)
	}
	fields := make([]string, 0, len(e.Fields))
	repeated := true
	for _, f := range e.Fields {
		repeated = repeated && strings.Contains(e.Message, f.Description)
		fields = append(fields, f.Field+": "+plainRule(f.Description))
	}
	if repeated {
		return strings.Join(fields, ", ")
	}
	return e.Message + " (" + strings.Join(fields, ", ") + ")"
}

// plainRule says in words what a rule of the contract means.
func plainRule(description string) string {
	if strings.Contains(description, "[a-z0-9]([-a-z0-9]*[a-z0-9])?") {
		return "must be a DNS label: a-z, 0-9 and -, such as prod-1"
	}
	return strings.TrimPrefix(description, "invalid argument: ")
}

// plainDial takes gRPC's wrapping off an error of connecting.
func plainDial(message string) string {
	inner, ok := strings.CutPrefix(message, `connection error: desc = "`)
	if !ok {
		return message
	}
	inner = strings.TrimPrefix(strings.TrimSuffix(inner, `"`), "transport: ")
	return "cannot connect: " + strings.TrimPrefix(inner, "Error while dialing: ")
}

func hintFor(e *client.Error) string {
	if hint := reasonHints[e.Reason]; hint != "" {
		return hint
	}
	switch e.Code {
	case codes.Unauthenticated:
		return "give --token-file or --cert and --key"
	case codes.PermissionDenied:
		return "these credentials have no role for it; ask the service's operator"
	case codes.Unavailable:
		return unreachedHint(e.Message)
	case codes.DeadlineExceeded:
		return "try again, or raise --timeout"
	case codes.Unimplemented:
		return "the service is older than this program, or another one listens there"
	default:
		return ""
	}
}

// unreachedHint says what to look at when a connection did not come about.
func unreachedHint(message string) string {
	switch {
	case strings.Contains(message, "first record does not look like a TLS handshake"):
		return "what listens there speaks no TLS; --plaintext turns it off"
	case strings.Contains(message, "authentication handshake failed"):
		return "--ca names the authority of the service's certificate, and --server has to be a name in it"
	case strings.Contains(message, "error reading server preface"):
		return "what listens there speaks TLS, perhaps; --ca or --plaintext=false turns it on"
	}
	return "is reprieved running there? --server says where to look"
}

// reasonHints says what to do about a reason of the service (ErrorInfo).
var reasonHints = map[string]string{
	client.ReasonClusterUnknown:     "`reprieve get clusters` lists those that are known",
	client.ReasonClusterDamaged:     "its record on disk is damaged; `reprieve policy set --cluster CLUSTER mode=...` repairs it",
	client.ReasonClusterUIDMismatch: "check --cluster-uid; a new cluster takes another name, or the old one's after `reprieve forget`",
	client.ReasonClusterNotSynced:   "its feed is not live; try again when `reprieve get clusters` shows SYNCED",
	client.ReasonFeedHeld:           "another feeder holds the cluster; stop it, or take over with a higher --epoch",
	client.ReasonPodUnknown:         "check the namespace (-n) and the cluster (--cluster); `reprieve history` shows evictions of pods that are gone",
	client.ReasonPodNotSubject:      "`reprieve explain pod` says why",
	client.ReasonNodeUnknown:        "`reprieve get nodes --all` lists the cluster's nodes",
	client.ReasonOtherController:    "--force does that",
	client.ReasonPauseUnknown:       "`reprieve get pauses` lists those in force",
	client.ReasonRequestUnknown:     "it was withdrawn or its eviction is over; `reprieve history` shows which",
	client.ReasonRequestConflict:    "use another --request-id",
	client.ReasonBlastRadiusUnknown: "`reprieve blast list` shows what is held and what was rejected",
	client.ReasonEtagMismatch:       "it was changed meanwhile; read it again",
	client.ReasonRevisionTooOld:     "list again",
	client.ReasonLimited:            "these credentials are used too much at once; try again, or raise `limits` of the service",
	client.ReasonStopping:           "the service is stopping; try again",
}

// isCobraUsage recognises the errors of argument checks, which have no type.
func isCobraUsage(err error) bool {
	text := err.Error()
	for _, p := range []string{"unknown command", "required flag(s)", "accepts ", "requires at least", "requires at most",
		"if any flags in the group", "at least one of the flags in the group"} {
		if strings.HasPrefix(text, p) {
			return true
		}
	}
	return false
}

// statusOf is the exit code that err would end the program with.
func statusOf(err error) int {
	code, _, _ := classify(err)
	return code
}

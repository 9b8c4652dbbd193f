package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// killAfter is how long a command has to end after SIGTERM.
	killAfter = 5 * time.Second
	// outputKept bounds what is kept of a command's output: its last line is the message.
	outputKept = 64 << 10
	// killedByTerm and killedByKill are what a shell exits with when its own
	// command died of a signal.
	killedByTerm = 128 + int(syscall.SIGTERM)
	killedByKill = 128 + int(syscall.SIGKILL)
)

// exitOutcomes are the exit codes of --exec that have a meaning, as its help says.
var exitOutcomes = map[int]reprievev1.Outcome{
	0:  reprievev1.Outcome_OUTCOME_EVICTED,
	10: reprievev1.Outcome_OUTCOME_GONE,
	11: reprievev1.Outcome_OUTCOME_SUPERSEDED,
	12: reprievev1.Outcome_OUTCOME_STALE,
	13: reprievev1.Outcome_OUTCOME_BLOCKED,
	14: reprievev1.Outcome_OUTCOME_DENIED,
	15: reprievev1.Outcome_OUTCOME_RECALLED,
}

// runCommand runs --exec for one order and makes its exit code the answer.
func (x *execution) runCommand(ctx context.Context, t *client.Task) client.Result {
	in, err := orderJSON(t)
	if err != nil {
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: err.Error()}
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", x.flags.command)
	// A group of its own: the terminal's interrupt is for this program, which then
	// waits for the command, and a recall reaches the shell's children too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killAfter
	cmd.Env = commandEnv(os.Environ(), t)
	cmd.Stdin = bytes.NewReader(append(in, '\n'))
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		// What of the group has outlived the shell must not act any more. An error
		// means that nothing has.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return commandResult(ctx, cmd.ProcessState, err, out.lastLine())
}

// commandResult is the answer for an ended command; state is nil if it did not
// start. The exit code counts, also of a command that took the SIGTERM of a
// recall and went on to its end: it knows best what was done.
func commandResult(ctx context.Context, state *os.ProcessState, err error, message string) client.Result {
	code := -1
	if state != nil {
		code = state.ExitCode()
	}
	killed := code < 0 || code == killedByTerm || code == killedByKill
	switch {
	case killed && errors.Is(context.Cause(ctx), client.ErrRecalled):
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_RECALLED, Message: "the recall ended the command"}
	case code < 0 && ctx.Err() != nil:
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: "the command was ended: " + context.Cause(ctx).Error()}
	case code < 0:
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: err.Error()}
	}
	if o, ok := exitOutcomes[code]; ok {
		return client.Result{Outcome: o, Message: message}
	}
	return client.Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: strings.TrimSpace(fmt.Sprintf("exit code %d: %s", code, message))}
}

// commandEnv is the environment of a command: ours without the credentials, and the order.
func commandEnv(environ []string, t *client.Task) []string {
	var env []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "REPRIEVE_") {
			env = append(env, kv)
		}
	}
	p := t.Pod
	return append(env,
		"REPRIEVE_CLUSTER="+p.GetCluster(), "REPRIEVE_NAMESPACE="+p.GetNamespace(), "REPRIEVE_POD="+p.GetName(), "REPRIEVE_UID="+p.GetUid(),
		"REPRIEVE_NODE="+p.GetNode(), "REPRIEVE_METHOD="+word(p.GetMethod(), "EVICTION_METHOD_"),
		fmt.Sprintf("REPRIEVE_ATTEMPT=%d", t.Attempt), "REPRIEVE_EVICTION_ID="+t.EvictionID)
}

// tail keeps the end of what is written to it. exec writes from one goroutine,
// for both streams are the same writer.
type tail struct{ b []byte }

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > outputKept {
		t.b = append([]byte(nil), t.b[len(t.b)-outputKept/2:]...)
	}
	return len(p), nil
}

func (t *tail) lastLine() string {
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	return cleanText(strings.TrimSpace(lines[len(lines)-1]))
}

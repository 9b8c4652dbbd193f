package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

// Env is what the program gets from its surroundings.
type Env struct {
	// In, Out and Err are the standard streams.
	In       io.Reader
	Out, Err io.Writer
	// Getenv reads an environment variable.
	Getenv func(string) string
	// Clock is the time that countdowns are counted by.
	Clock clock.Clock
	// Width is the number of columns of Out, 0 if it is no terminal.
	Width func() int
	// Interactive says whether In and Err are a terminal, so that a question can be asked.
	Interactive bool
	// Dial connects to the service.
	Dial Dialer
	// CheckStore checks a data file, which may be damaged beyond reading.
	CheckStore func(ctx context.Context, path string) (*bolt.Report, error)
}

// System is the process's own environment.
func System() *Env {
	return &Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Getenv: os.Getenv,
		Clock:  clock.NewReal(),
		Width: func() int {
			if !term.IsTerminal(int(os.Stdout.Fd())) {
				return 0
			}
			w, _, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				return 0
			}
			return w
		},
		Interactive: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
		Dial:        client.Dial,
		CheckStore:  checkInChild,
	}
}

// Main runs one command line and returns the exit code. Errors go to env.Err in
// one line.
func Main(ctx context.Context, env *Env, args []string) int {
	root := newRoot(env)
	root.SetArgs(args)
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	code, line := describe(commandName(cmd), err)
	if line != "" {
		fmt.Fprintln(env.Err, line)
	}
	return code
}

// commandName is the command's path without the program's name.
func commandName(cmd *cobra.Command) string {
	if cmd == nil || !cmd.HasParent() {
		return ""
	}
	name := cmd.CommandPath()
	return name[len(cmd.Root().Name())+1:]
}

// app is one run of the program: its surroundings and its global flags.
type app struct {
	*Env
	flags globalFlags
}

const (
	groupQuery    = "query"
	groupOperate  = "operate"
	groupConnect  = "connect"
	groupRehearse = "rehearse"
	groupOther    = "other"
)

func newRoot(env *Env) *cobra.Command {
	a := &app{Env: env}
	root := &cobra.Command{
		Use:   "reprieve",
		Short: "See, rehearse and steer the evictions of Kubernetes pods for taints",
		Long: `reprieve talks to reprieved, the service that decides which pods must leave a
node because of its NoExecute taints, and when.

Exit codes: 0 success; 1 failure, an interrupt, or a difference found; 2 wrong usage;
3 not found; 4 not allowed or not authenticated; 5 the service is unavailable.
An interrupt is the ordinary end (0) of a live get -w, execute or feed --follow.

Environment: REPRIEVE_SERVER, REPRIEVE_TOKEN, REPRIEVE_TOKEN_FILE, REPRIEVE_CA,
REPRIEVE_CERT, REPRIEVE_KEY and REPRIEVE_CLUSTER stand for the flags of those names.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("%q is no command; `reprieve --help` lists them", args[0])
			}
			return nil
		},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.flags.complete(cmd, a.Getenv) },
	}
	root.AddGroup(
		&cobra.Group{ID: groupQuery, Title: "Ask:"},
		&cobra.Group{ID: groupOperate, Title: "Steer:"},
		&cobra.Group{ID: groupConnect, Title: "Connect a cluster:"},
		&cobra.Group{ID: groupRehearse, Title: "Rehearse on files:"},
		&cobra.Group{ID: groupOther, Title: "Other:"},
	)
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	root.SetUsageFunc(usage)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%v", err) })
	a.flags.register(root)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupQuery, newGet(a), newExplain(a), newHistory(a), newAudit(a))
	add(groupOperate, newPause(a), newResume(a), newEnforce(a), newShadow(a), newForget(a),
		newPolicy(a), newBlast(a), newGrant(a), newRevoke(a), newRequest(a), newWithdraw(a), newBackfill(a))
	add(groupConnect, newAgent(a), newFeed(a), newExecute(a))
	add(groupRehearse, newReplay(a), newSimulate(a))
	add(groupOther, newStore(a), newVersion(a))
	return root
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// redrawEvery is how often a live table counts down.
const redrawEvery = time.Second

// ticks sends on the channel every d until ctx ends.
func ticks(ctx context.Context, c clock.Clock, d time.Duration) <-chan struct{} {
	ch := make(chan struct{}, 1)
	var t clock.Timer
	ready := make(chan struct{})
	t = c.NewTimer(func() {
		<-ready
		select {
		case ch <- struct{}{}:
		default:
		}
		t.Reset(c.Now().Add(d))
		if ctx.Err() != nil {
			t.Stop() // The stop at ctx's end may have come before the reset.
		}
	})
	close(ready)
	t.Reset(c.Now().Add(d))
	context.AfterFunc(ctx, t.Stop)
	return ch
}

// watchEvictions shows open evictions as they change: a table that is drawn again
// at a terminal, else one line a change. It ends when interrupted.
func (a *app) watchEvictions(ctx context.Context, f evictionFlags) error {
	if f.pod != "" || f.uid != "" || f.requester != "" || f.holds != nil || f.states != nil || f.within != 0 || f.limit != 0 {
		return usagef("-w selects by --cluster, -n and --node only")
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := &reprievev1.WatchEvictionsRequest{Cluster: a.flags.cluster, Namespace: a.flags.namespace, Node: f.node, InitialList: true}
	if err := a.reachable(ctx, conn, req); err != nil {
		return err
	}
	events := make(chan client.WatchEvent)
	done := make(chan error, 1)
	go func() {
		done <- client.Watch(ctx, conn, req, func(ev client.WatchEvent) error {
			select {
			case events <- ev:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	view := a.newView()
	tick := ticks(ctx, a.Clock, redrawEvery)
	for {
		select {
		case ev := <-events:
			err = view.apply(ev)
		case <-tick:
			err = view.draw()
		case err = <-done:
			if interrupted(ctx, err) {
				err = nil
			}
			return err
		}
		if err != nil {
			cancel()
			<-done //nolint:errcheck // its error is the cancellation's
			return err
		}
	}
}

// reachable asks once, so that a wrong address or name shows at once. The watch
// itself connects again and again, which is right only after it has worked.
func (a *app) reachable(ctx context.Context, conn *client.Conn, w *reprievev1.WatchEvictionsRequest) error {
	ctx, cancel := context.WithTimeout(ctx, a.flags.timeout)
	defer cancel()
	_, err := conn.Query().ListEvictions(ctx, &reprievev1.ListEvictionsRequest{Cluster: w.GetCluster(), Namespace: w.GetNamespace(), Node: w.GetNode(), PageSize: 1})
	return err
}

// interrupted says whether err is only the end that the user asked for.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}

// view is what a watch shows.
type view struct {
	a    *app
	live bool
	open map[string]*reprievev1.Eviction
	full bool // the initial list is complete
	rows int  // lines of the last drawing
}

func (a *app) newView() *view {
	return &view{a: a, live: a.draws(), open: map[string]*reprievev1.Eviction{}}
}

func (v *view) apply(ev client.WatchEvent) error {
	e := ev.Eviction
	switch {
	case ev.Reset:
		clear(v.open)
		v.full = false
		return nil
	case ev.ListEnd:
		v.full = true
		return v.draw()
	case e == nil:
		return nil
	}
	if v.a.flags.output != outputTable {
		return v.a.printLine(e)
	}
	if !v.live {
		_, err := fmt.Fprintln(v.a.Out, changeLine(e, v.a.Clock.Now()))
		return err
	}
	if e.GetState() == reprievev1.EvictionState_EVICTION_STATE_CLOSED {
		delete(v.open, e.GetId())
	} else {
		v.open[e.GetId()] = e
	}
	return nil
}

// changeLine is one change for a reader without a screen.
func changeLine(e *reprievev1.Eviction, now time.Time) string {
	what := stateWord(e, now) + " " + countdown(e.GetDueTime(), now)
	if e.GetState() == reprievev1.EvictionState_EVICTION_STATE_CLOSED {
		what = "CLOSED " + closeWord(e)
	}
	return cleanText(strings.Join([]string{now.Format(time.RFC3339), e.GetCluster(), podWord(e.GetNamespace(), e.GetPod()), e.GetNode(), what, causeWord(e.GetCause())}, "  "))
}

// draw draws the live table over the last one.
func (v *view) draw() error {
	if !v.live || !v.full {
		return nil
	}
	list := make([]*reprievev1.Eviction, 0, len(v.open))
	for _, e := range v.open {
		list = append(list, e)
	}
	slices.SortFunc(list, func(x, y *reprievev1.Eviction) int {
		return cmp.Or(x.GetDueTime().AsTime().Compare(y.GetDueTime().AsTime()), strings.Compare(x.GetId(), y.GetId()))
	})
	more := ""
	if len(list) > screenRows {
		more = fmt.Sprintf("… and %d more\n", len(list)-screenRows)
		list = list[:screenRows]
	}
	return v.a.redraw(&v.rows, evictionTable(list, v.a.flags.cluster == "", v.a.Clock.Now()), more)
}

// screenRows bounds a live table: what is due first is what matters.
const screenRows = 20

// redraw replaces the last drawing of *rows lines on the terminal by a table, and what
// is said below it. Lines that are longer than the terminal is wide are cut: they would
// take two of its rows.
func (a *app) redraw(rows *int, t *table, below string) error {
	width := a.Width()
	if width <= 0 { // It does not say any more how wide it is.
		width = tableWidth
	}
	var b strings.Builder
	for line := range strings.Lines(t.render(width) + below) {
		if r := []rune(strings.TrimSuffix(line, "\n")); len(r) > width {
			line = string(r[:width]) + "\n"
		}
		b.WriteString(line)
	}
	text, up := b.String(), ""
	if *rows > 0 {
		up = fmt.Sprintf("\x1b[%dA\x1b[J", *rows)
	}
	*rows = strings.Count(text, "\n")
	_, err := io.WriteString(a.Out, up+text)
	return err
}

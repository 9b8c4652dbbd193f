package server

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

func boltFile(ctx context.Context, s StoreSettings) (engine.Store, error) {
	return bolt.Open(ctx, bolt.Options{Path: s.Path, Room: s.Room, Damaged: s.Damaged, SetAside: s.SetAside, WasSetAside: s.WasSetAside})
}

// log is what a program writes, with a way to wait for a line.
type log struct {
	mu    sync.Mutex // guards buf
	buf   bytes.Buffer
	lines chan string
}

func newLog() *log { return &log{lines: make(chan string, 1000)} }

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines <- string(p)
	return l.buf.Write(p)
}

func (l *log) wait(t *testing.T, text string) {
	t.Helper()
	for line := range l.lines {
		if strings.Contains(line, text) {
			return
		}
	}
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// ports makes a program take any that are free.
func ports(dir string, more ...string) []string {
	return append([]string{"--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, more...)
}

func TestMainRunsUntilASignal(t *testing.T) {
	dir := t.TempDir()
	signals, out := make(chan os.Signal, 2), newLog()
	code := make(chan int, 1)
	go func() {
		code <- Main(Process{Args: ports(dir), Stdout: out, Stderr: out, Signals: signals, Exit: func(int) {}}, Parts{OpenStore: boltFile})
	}()
	out.wait(t, "msg=serving")

	second := newLog()
	if c := Main(Process{Args: ports(dir), Stdout: second, Stderr: second, Exit: func(int) {}}, Parts{OpenStore: boltFile}); c != exitFailed || !strings.Contains(second.String(), "in use by another process") {
		t.Errorf("a second process on the data folder: %d %s", c, second)
	}
	signals <- os.Interrupt
	if c := <-code; c != exitOK {
		t.Errorf("exit code %d: %s", c, out)
	}
	// The data folder is free again.
	signals <- os.Interrupt
	if c := Main(Process{Args: ports(dir, "--log-format", "json"), Stdout: out, Stderr: out, Signals: signals, Exit: func(int) {}}, Parts{OpenStore: boltFile}); c != exitOK {
		t.Errorf("exit code %d: %s", c, out)
	}
}

// A SIGHUP reads the files again, and counts as no signal to end.
func TestMainReloads(t *testing.T) {
	path := writeFile(t, "tokens.yaml", string(tokenFile(t, rotating()...)))
	conf := writeFile(t, "c.yaml", "auth: {tokens_file: "+path+"}\n")
	signals, out := make(chan os.Signal, 2), newLog()
	code := make(chan int, 1)
	go func() {
		code <- Main(Process{Args: ports(t.TempDir(), "--config", conf), Stdout: out, Stderr: out, Signals: signals}, Parts{OpenStore: boltFile})
	}()
	out.wait(t, "msg=serving")
	if err := os.WriteFile(path, tokenFile(t, rotating()[1:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	signals <- syscall.SIGHUP
	out.wait(t, "a changed file is in force")
	signals <- syscall.SIGTERM
	if c := <-code; c != exitOK {
		t.Errorf("exit code %d: %s", c, out)
	}
}

func TestMainSecondSignalExitsAtOnce(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	open := func(context.Context, StoreSettings) (engine.Store, error) {
		close(entered)
		<-leave
		return nil, os.ErrClosed
	}
	signals, exited, code := make(chan os.Signal, 2), make(chan int, 1), make(chan int, 1)
	go func() {
		code <- Main(Process{Args: ports(t.TempDir()), Stdout: newLog(), Stderr: newLog(), Signals: signals, Exit: func(c int) { exited <- c }}, Parts{OpenStore: open})
	}()
	<-entered
	signals <- os.Interrupt
	signals <- os.Interrupt
	if c := <-exited; c != exitForced {
		t.Errorf("exit code %d", c)
	}
	close(leave)
	if c := <-code; c != exitFailed {
		t.Errorf("exit code %d", c)
	}
}

// A reload that hangs, as on a file that is not answered for, keeps no signal from its
// act, and further ones come after it as one.
func TestSignalsActWhileAReloadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, done, hangs := make(chan os.Signal), make(chan struct{}), make(chan struct{})
		reloads, acted := 0, make(chan string)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			obey(signals, done, func() { reloads++; <-hangs }, []func(){func() { acted <- "end" }, func() { acted <- "end at once" }})
		}()
		for range 4 {
			signals <- syscall.SIGHUP
			synctest.Wait()
		}
		for _, want := range []string{"end", "end at once"} {
			signals <- syscall.SIGTERM
			if got := <-acted; got != want {
				t.Errorf("a signal was an order to %s, want %s", got, want)
			}
		}
		close(hangs)
		<-ended
		if reloads != 2 {
			t.Errorf("%d reloads for four signals, want the one that hung and one for the others", reloads)
		}
	})
}

func TestMainRefusals(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"port in use":     {[]string{"--data-dir", t.TempDir(), "--listen", lis.Addr().String()}, exitFailed, "is in use by another process"},
		"unknown flag":    {[]string{"--nonsense"}, exitUsage, "nonsense"},
		"bad value":       {[]string{"--adopt", "maybe"}, exitUsage, `adopt: "maybe"`},
		"plaintext":       {[]string{"--listen", ":7443"}, exitUsage, "not on loopback"},
		"help":            {[]string{"--help"}, exitOK, "-data-dir"},
		"version":         {[]string{"--version"}, exitOK, "reprieved "},
		"validate":        {[]string{"--validate-config"}, exitOK, "the configuration is valid"},
		"validate a bad":  {[]string{"--validate-config", "--log-level", "loud"}, exitUsage, "log_level"},
		"no config there": {[]string{"--config", "/does/not/exist"}, exitUsage, "/does/not/exist"},
		"data dir a file": {ports("/dev/null"), exitFailed, "data_dir /dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			out := newLog()
			if c := Main(Process{Args: tc.args, Stdout: out, Stderr: out, Exit: func(int) {}}, Parts{OpenStore: boltFile}); c != tc.code || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit code %d: %s; want %d and %q", c, out, tc.code, tc.want)
			}
		})
	}
}

// TestDamagedFile: a data file beyond help is refused, or set aside, as configured.
func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "reprieve.db")
	if err := os.WriteFile(path, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	out := newLog()
	if c := Main(Process{Args: ports(dir), Stdout: out, Stderr: out, Exit: func(int) {}}, Parts{OpenStore: boltFile}); c != exitFailed || !strings.Contains(out.String(), "restore a backup") {
		t.Errorf("refusing: exit code %d: %s", c, out)
	}
	conf := writeFile(t, "c.yaml", "store: {on_damage: set_aside}\n")
	signals, code := make(chan os.Signal), make(chan int)
	go func() {
		code <- Main(Process{Args: ports(dir, "--config", conf), Stdout: out, Stderr: out, Signals: signals, Exit: func(int) {}}, Parts{OpenStore: boltFile})
	}()
	out.wait(t, "msg=serving")
	signals <- os.Interrupt
	if c := <-code; c != exitOK {
		t.Errorf("exit code %d: %s", c, out)
	}
	aside, _ := filepath.Glob(path + ".damaged-*Z")
	if len(aside) != 1 || !strings.Contains(out.String(), aside[0]) {
		t.Errorf("set aside: %v; log: %s", aside, out)
	}
}

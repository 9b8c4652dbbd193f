package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

// stopWithin is how long Stop waits after SIGTERM before it kills.
const stopWithin = 15 * time.Second

// tailBytes is how much of its log a process shows when its test fails.
const tailBytes = 6 << 10

// Spec says what to run.
type Spec struct {
	// Name names the process in messages and its log file.
	Name string
	// Path is the program; Args do not include it.
	Path string
	Args []string
	// Env is added to the test's own environment.
	Env []string
	// Dir is the working directory; empty is the test's own.
	Dir string
	// Stdin is the input; nil is empty.
	Stdin io.Reader
}

// Process is a program that runs, or ran, for a test.
type Process struct {
	t    testing.TB
	spec Spec
	log  string

	// mu guards cur, which is replaced when the program starts again.
	mu  sync.Mutex
	cur *run
}

// run is one life of the program.
type run struct {
	cmd *exec.Cmd
	// done is closed when the program has ended and err is set.
	done chan struct{}
	err  error
}

// Start runs the program. When the test ends the program is killed and waited for, and if the test has failed the
// end of its log is printed.
func Start(t testing.TB, spec Spec) *Process {
	t.Helper()
	p := &Process{t: t, spec: spec, log: filepath.Join(t.TempDir(), spec.Name+".log")}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", spec.Name, tail(p.Log()))
		}
	})
	p.Start()
	return p
}

// Start runs the program again after it has ended, with the same arguments. Its log goes on in the same file.
func (p *Process) Start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cur != nil && !p.cur.ended() {
		p.t.Fatalf("%s runs already", p.spec.Name)
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatalf("log of %s: %v", p.spec.Name, err)
	}
	cmd := exec.Command(p.spec.Path, p.spec.Args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = p.spec.Stdin, out, out, p.spec.Dir
	cmd.Env = append(os.Environ(), p.spec.Env...)
	// The group, so that a shell's children go with it; the signal, so that nothing outlives a killed test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	r := &run{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the child ends: this one stays until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			r.err = cmd.Wait()
		}
		_ = out.Close() // The program has its own handle.
		close(r.done)
	}()
	if err := <-started; err != nil {
		p.t.Fatalf("start %s: %v", p.spec.Name, err)
	}
	p.cur = r
}

// Kill ends the program with SIGKILL and waits for it. It does nothing if the program has ended.
func (p *Process) Kill() { _ = p.end(syscall.SIGKILL) }

// Stop ends the program with SIGTERM, waits for it and returns how it ended; after a while it kills.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

// Restart kills the program and starts it again.
func (p *Process) Restart() {
	p.t.Helper()
	p.Kill()
	p.Start()
}

func (p *Process) end(sig syscall.Signal) error {
	r := p.life()
	if r == nil {
		return nil
	}
	if !r.ended() {
		// A program that has just ended by itself is what was wanted.
		_ = syscall.Kill(-r.cmd.Process.Pid, sig)
	}
	if sig != syscall.SIGKILL {
		err := await.For(p.t.Context(), stopWithin, p.spec.Name+" to stop", func(context.Context) error {
			if r.ended() {
				return nil
			}
			return errors.New("it runs")
		})
		if err == nil {
			return r.err
		}
		_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
	}
	<-r.done
	return r.err
}

// Done is closed when the program, as last started, has ended.
func (p *Process) Done() <-chan struct{} { return p.life().done }

// Ended returns how the program ended, or nil and false while it runs.
func (p *Process) Ended() (error, bool) {
	r := p.life()
	if !r.ended() {
		return nil, false
	}
	return r.err, true
}

// Pid is the id of the program as last started.
func (p *Process) Pid() int { return p.life().cmd.Process.Pid }

// Log returns what the program has written to its outputs in all its lives.
func (p *Process) Log() []byte {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Appendf(nil, "no log: %v", err)
	}
	return b
}

func (p *Process) life() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cur
}

func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func tail(b []byte) []byte {
	if len(b) <= tailBytes {
		return b
	}
	b = b[len(b)-tailBytes:]
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[i+1:]
	}
	return b
}

// handedOut are the ports that FreePort has given away.
var handedOut sync.Map

// FreePort returns a loopback port that nothing listens on, below the range that the kernel takes for outgoing
// connections, so that it is still free when a program that was killed starts again.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 12000 + rand.IntN(18000)
		if _, taken := handedOut.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port
	}
	t.Fatal("no free port")
	return 0
}

// Bin returns the path of a program that `make e2e` has built, by its name under bin/.
func Bin(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(Root(t), "bin", filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not built: run make e2e, or make build and test/controlplane/build.sh (%v)", name, err)
	}
	return path
}

// Root returns the top folder of the repository.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "test", "e2e", "go.mod")); missing == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		dir = parent
	}
	t.Fatalf("not inside the repository: %v", err)
	return ""
}

//go:build crash

package crash

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// startWithin bounds a start on a busy machine.
const startWithin = 30 * time.Second

// program is the service's binary and what it keeps between its lives.
type program struct {
	t    *testing.T
	bin  string
	dir  string
	addr string
	log  *os.File
	// admin is the address of metrics; empty for none.
	admin string
	// env is what the program's environment has besides.
	env []string
	// shifted is by how much the wall clock's reading is shifted.
	shifted time.Duration
}

// hasty is a configuration in which much happens in a short life.
const hasty = `
adopt: enforce
feed_timeout: 10s
history: {sent_count: 50, early_count: 50}
defaults:
  rate: {per_second: 200, burst: 20}
  disable_blast_radius: true
`

func newProgram(t *testing.T, bin, conf string) *program {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "reprieved.yaml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, bin: bin, dir: dir, addr: freePort(t), log: log}
	t.Cleanup(func() {
		_ = log.Close()
		if t.Failed() {
			if text, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("the end of the service's log:\n%s", text[max(0, len(text)-8000):])
			}
		}
	})
	return p
}

// freePort is an address on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

func (p *program) shiftFile() string { return filepath.Join(p.dir, "shift") }

// shift makes the wall clock read so much more from now on.
func (p *program) shift(d time.Duration) {
	p.shifted = d
	if err := os.WriteFile(p.shiftFile(), []byte(d.String()), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// life is one run of the program.
type life struct {
	cmd  *exec.Cmd
	conn *grpc.ClientConn
	dead chan struct{} // closed when the process has ended
	end  sync.Once
}

// start runs the program, which kills itself when it comes to point for the nth time, after so long; an empty point
// never.
func (p *program) start(point string, n int, after time.Duration) *life {
	p.t.Helper()
	cmd := exec.Command(p.bin, "--config", filepath.Join(p.dir, "reprieved.yaml"), "--data-dir", filepath.Join(p.dir, "data"),
		"--listen", p.addr, "--admin-listen", p.admin)
	cmd.Env = append(os.Environ(), "REPRIEVE_WALL_SHIFT_FILE="+p.shiftFile())
	if point != "" {
		cmd.Env = append(cmd.Env, fmt.Sprintf("REPRIEVE_FAILPOINT=%s:%d:%s", point, n, after))
	}
	cmd.Env = append(cmd.Env, p.env...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	l := &life{cmd: cmd, dead: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(l.dead)
	}()
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		p.t.Fatal(err)
	}
	l.conn = conn
	return l
}

var errDied = errors.New("the process died")

// ready waits until the service answers, or has died.
func (p *program) ready(l *life) error {
	deadline := time.Now().Add(startWithin)
	ports := []string{p.addr}
	if p.admin != "" {
		ports = append(ports, p.admin)
	}
	for time.Now().Before(deadline) {
		c, err := net.DialTimeout("tcp", ports[0], 100*time.Millisecond)
		if err == nil {
			_ = c.Close()
			if ports = ports[1:]; len(ports) == 0 {
				return nil
			}
			continue
		}
		if l.wait(2 * time.Millisecond) {
			return errDied
		}
	}
	return errors.New("the service does not listen")
}

// wait waits for the process's end for so long and reports it.
func (l *life) wait(d time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	select {
	case <-l.dead:
		return true
	case <-ctx.Done():
		return false
	}
}

// kill ends the process if it has not ended, and what was connected to it.
func (l *life) kill() {
	l.end.Do(func() {
		_ = l.cmd.Process.Kill()
		<-l.dead
		_ = l.conn.Close()
	})
}

// status is the signal or code that ended the process.
func (l *life) status() string { return l.cmd.ProcessState.String() }

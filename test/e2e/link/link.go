package link

import (
	"net"
	"sync"
	"testing"
	"time"
)

// dialWithin bounds the way to the target, which is on this machine.
const dialWithin = 5 * time.Second

// Link forwards the connections made to Addr to a target.
type Link struct {
	// Addr is where the link listens, host and port.
	Addr string

	t      testing.TB
	target string
	lis    net.Listener
	wait   sync.WaitGroup

	// mu guards what follows.
	mu sync.Mutex
	// open are both sides of the connections that stand.
	open map[net.Conn]struct{}
	// cut says that connections end as soon as they are made.
	cut bool
	// flow is closed while bytes pass.
	flow chan struct{}
	// over says that the test has ended.
	over bool
}

// Start forwards to target, host and port, until the test ends.
func Start(t testing.TB, target string) *Link {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("link to %s: %v", target, err)
	}
	l := &Link{Addr: lis.Addr().String(), t: t, target: target, lis: lis, open: map[net.Conn]struct{}{}, flow: make(chan struct{})}
	close(l.flow)
	l.wait.Go(l.accept)
	t.Cleanup(l.end)
	return l
}

// Cut ends all connections, and those made until Mend at once.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	l.dropAll()
}

// Stall keeps all connections open, and lets new ones be made, but nothing passes until Mend. What was sent
// meanwhile arrives then, as it does when a network that lost packets comes back.
func (l *Link) Stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.flow) {
		l.flow = make(chan struct{})
	}
}

// Mend ends Cut and Stall.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
	l.release()
}

func (l *Link) end() {
	_ = l.lis.Close() // That is what ends accept.
	l.mu.Lock()
	l.over = true
	l.release()
	l.dropAll()
	l.mu.Unlock()
	l.wait.Wait()
}

// release lets bytes pass. mu is held.
func (l *Link) release() {
	if !isClosed(l.flow) {
		close(l.flow)
	}
}

// dropAll ends the connections that stand. mu is held.
func (l *Link) dropAll() {
	for c := range l.open {
		_ = c.Close() // Whoever uses it notices.
	}
}

func (l *Link) accept() {
	for {
		conn, err := l.lis.Accept()
		if err != nil {
			return
		}
		l.wait.Go(func() { l.forward(conn) })
	}
}

// forward is one connection's life.
func (l *Link) forward(near net.Conn) {
	defer near.Close()
	if !l.keep(near) {
		return
	}
	defer l.drop(near)
	far, err := net.DialTimeout("tcp", l.target, dialWithin)
	if err != nil {
		return // The near side sees its connection end, as if it had called the target itself.
	}
	defer far.Close()
	if !l.keep(far) {
		return
	}
	defer l.drop(far)
	// Either side's end is the other's.
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			l.pass(way[0], way[1])
			_ = near.Close()
			_ = far.Close()
		})
	}
	both.Wait()
}

// pass copies one way while the link lets bytes through.
func (l *Link) pass(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		<-l.gate()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *Link) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flow
}

// keep notes a connection and reports whether it may stand.
func (l *Link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut || l.over {
		return false
	}
	l.open[c] = struct{}{}
	return true
}

func (l *Link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

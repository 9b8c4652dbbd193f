package engine

import "sync/atomic"

// countdown calls then when done has been called n times.
type countdown struct {
	left atomic.Int64
	then func()
}

func newCountdown(n int, then func()) *countdown {
	c := &countdown{then: then}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) done() {
	if c.left.Add(-1) == 0 && c.then != nil {
		c.then()
	}
}

package client

import (
	"testing"
	"testing/synctest"
	"time"
)

// A deadline that has passed is known before the timers that tell of it have run.
func TestTaskExpiresByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task := &Task{renewed: make(chan time.Duration, 1)}
		if task.Expired() {
			t.Error("without a deadline it has passed")
		}
		task.runsOut(30 * time.Second)
		time.Sleep(20 * time.Second)
		task.renew(30 * time.Second)
		time.Sleep(29 * time.Second)
		if task.Expired() {
			t.Error("expired 1 s before the renewed deadline")
		}
		time.Sleep(time.Second)
		if !task.Expired() {
			t.Error("not expired at the deadline")
		}
	})
}

package clock

import "time"

// runtimeTimer is a sleeper on a timer of the runtime's.
type runtimeTimer struct{ *time.Timer }

func runtimeSleeper(ring func()) sleeper { return runtimeTimer{time.AfterFunc(maxSleep, ring)} }

func (t runtimeTimer) sleep(d time.Duration) { t.Reset(d) }
func (t runtimeTimer) end()                  { t.Stop() }

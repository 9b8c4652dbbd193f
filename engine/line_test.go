package engine

import "testing"

// TestLineRoom fills a line and empties it from its middle: the dispatcher is told
// once, when half of it is free, whether or not it was the head's turn.
func TestLineRoom(t *testing.T) {
	var l line
	permits := make([]*permit, lineRoom)
	for i := range permits {
		if !l.room() {
			t.Fatalf("no room for permit %d of %d", i, lineRoom)
		}
		permits[i] = &permit{}
		l.join(permits[i])
	}
	if l.room() {
		t.Fatalf("room for more than %d permits", lineRoom)
	}
	told := 0
	for i := len(permits) - 1; i >= 0; i-- {
		if _, roomy := l.leave(permits[i]); roomy {
			told++
			if left := i; left != lineRoom/2 {
				t.Errorf("told with %d in line, want %d", left, lineRoom/2)
			}
		}
	}
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}
	if l.head != nil || l.tail != nil || l.length != 0 {
		t.Errorf("the empty line has %d permits", l.length)
	}
	if !l.room() {
		t.Error("an empty line has no room")
	}
}

package fault

import (
	"math/rand/v2"
	"sync"
)

// Op is a call that can fail.
type Op uint8

// The calls.
const (
	Open Op = iota + 1
	Load
	Commit
	Prune
)

// Effect is what becomes of a call.
type Effect uint8

// The effects.
const (
	// Pass: the call is made as if nothing were between.
	Pass Effect = iota
	// Before: the call is not made and reported as failed.
	Before
	// After: the call is made in full and reported as failed.
	After
	// Torn: of a commit the first changes are made, the rest is not, and it is
	// reported as failed. Other calls fail as with Before.
	Torn
	// NoSpace: the call is not made; the error says that the disk is full.
	NoSpace
	// Block: the call waits for its Gate, then it is made.
	Block
)

// Fault is what becomes of one call.
type Fault struct {
	Effect Effect
	// Part is the share of the changes that Torn makes, from 0 up to but not including 1.
	Part float64
	// Gate is set for Block.
	Gate *Gate
}

// Plan decides what becomes of each call. Several goroutines may ask it at once.
type Plan interface {
	Next(op Op) Fault
}

// Gate holds a call back until the test lets it go on.
type Gate struct {
	reached, released         chan struct{}
	reachedOnce, releasedOnce sync.Once
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{reached: make(chan struct{}), released: make(chan struct{})} }

// Reached is closed when a call waits at the gate.
func (g *Gate) Reached() <-chan struct{} { return g.reached }

// Release opens the gate for good.
func (g *Gate) Release() { g.releasedOnce.Do(func() { close(g.released) }) }

// Step is a part of a script: of the calls of one kind the first Skip pass, and
// the next Times (0 means 1) meet the fault.
type Step struct {
	Op          Op
	Skip, Times int
	Fault
}

// Script is a plan in steps. Calls of each kind go through the steps of their
// kind in order, and pass when there is none left.
type Script struct {
	// mu guards steps.
	mu    sync.Mutex
	steps []Step
}

// NewScript returns a plan of the steps.
func NewScript(steps ...Step) *Script {
	s := &Script{}
	s.Add(steps...)
	return s
}

// Add appends steps, which count the calls from when the steps before them are over.
func (s *Script) Add(steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, step := range steps {
		step.Times = max(step.Times, 1)
		s.steps = append(s.steps, step)
	}
}

// Left is how many steps are not over yet.
func (s *Script) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.steps)
}

// Next implements [Plan].
func (s *Script) Next(op Op) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.steps {
		step := &s.steps[i]
		if step.Op != op {
			continue
		}
		if step.Skip > 0 {
			step.Skip--
			return Fault{}
		}
		f := step.Fault
		if step.Times--; step.Times == 0 {
			s.steps = append(s.steps[:i:i], s.steps[i+1:]...)
		}
		return f
	}
	return Fault{}
}

// Odds are how likely each effect is, from 0 to 1 in sum; the rest passes.
type Odds struct{ Before, After, Torn, NoSpace float64 }

// Seeded is a plan of chance that is the same for the same seed and calls.
type Seeded struct {
	// mu guards rand.
	mu   sync.Mutex
	rand *rand.Rand
	odds map[Op]Odds
}

// NewSeeded returns a plan of chance. Calls without odds pass.
func NewSeeded(seed uint64, odds map[Op]Odds) *Seeded {
	return &Seeded{rand: rand.New(rand.NewPCG(seed, 0x5eed)), odds: odds}
}

// Next implements [Plan].
func (s *Seeded) Next(op Op) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.odds[op]
	if !ok {
		return Fault{}
	}
	x := s.rand.Float64()
	for _, c := range []struct {
		odds   float64
		effect Effect
	}{{o.Before, Before}, {o.After, After}, {o.Torn, Torn}, {o.NoSpace, NoSpace}} {
		if x < c.odds {
			f := Fault{Effect: c.effect}
			if c.effect == Torn {
				f.Part = s.rand.Float64()
			}
			return f
		}
		x -= c.odds
	}
	return Fault{}
}

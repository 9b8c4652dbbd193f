package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has taken of the machine.
type Usage struct {
	// CPU is the time it has run, on all cores.
	CPU time.Duration
	// Resident is its memory, in bytes.
	Resident int64
}

// clockTick is the unit of CPU times in /proc on Linux.
const clockTick = 10 * time.Millisecond

// Usage reads what the process has taken since it was started last.
func (p *Process) Usage() (u Usage, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return u, err
	}
	// The name, in parentheses, may have spaces; utime, stime and rss are the 14th, 15th and 24th field.
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 22 {
		return u, fmt.Errorf("/proc/%d/stat has %d fields after the name", p.Pid(), len(fields))
	}
	var numbers [3]int64
	for i, at := range []int{11, 12, 21} {
		if numbers[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return u, fmt.Errorf("/proc/%d/stat: %w", p.Pid(), err)
		}
	}
	return Usage{CPU: time.Duration(numbers[0]+numbers[1]) * clockTick, Resident: numbers[2] * int64(os.Getpagesize())}, nil
}

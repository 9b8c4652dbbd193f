// Package clock is the one place that reads time.
//
// [Real] is engine time: the wall clock at start plus the boot-time clock's
// progress, so that it never steps and goes on through a suspended machine.
// [Virtual] is moved by its owner and serves replay and tests. The package must
// not know what the times are for.
package clock

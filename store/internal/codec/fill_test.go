package codec

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
)

// filler sets every field of a record to something that occurs only once.
type filler struct {
	t testing.TB
	n int
}

// filled returns a T with nothing left at its zero value.
func filled[T any](t testing.TB) *T {
	v := new(T)
	(&filler{t: t}).fill(reflect.ValueOf(v).Elem())
	return v
}

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Date(2026, 1, 1, 0, 0, f.n, f.n, time.UTC)
		return
	case *engine.PolicyField:
		*x = engine.PolicyAllFields
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8:
		// All of this size are enums, and 1 is in each.
		v.SetUint(1)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Float64:
		v.SetFloat(float64(f.n) + 0.5)
	default:
		f.t.Fatalf("a record has a field of type %s: teach the filler and the codec", v.Type())
	}
}

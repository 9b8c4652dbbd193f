package server

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reprieve-dev/reprieve/engine"
)

// TestErrorRules proves that each rule is reached by its error and that reasons are unique.
func TestErrorRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range errorRules {
		st, known := statusOf(fmt.Errorf("context: %w", r.err))
		if !known || st.Code() != r.code || reasonOf(st) != r.reason {
			t.Errorf("%v became %v with reason %q", r.err, st, reasonOf(st))
		}
		if seen[r.reason] {
			t.Errorf("reason %s is there twice", r.reason)
		}
		seen[r.reason] = true
	}
}

// TestClientKnowsEveryReason compares the reasons with the client library's.
func TestClientKnowsEveryReason(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../client/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var known, given []string
	ast.Inspect(file, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Reason") {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			known = append(known, text)
		}
		return true
	})
	for _, r := range errorRules {
		given = append(given, r.reason)
	}
	slices.Sort(known)
	slices.Sort(given)
	if diff := cmp.Diff(given, known); diff != "" {
		t.Errorf("reasons (-service +client):\n%s", diff)
	}
}

// ownErrors are the server's, which the engine does not know.
var ownErrors = []error{errUnauthenticated, errDenied, errGrantsChanged, errLimited}

// TestEverySentinelHasARule fails for an error of the engine that was forgotten.
func TestEverySentinelHasARule(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../engine/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(file, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok {
			n += len(spec.Names)
		}
		return true
	})
	engines := 0
	for _, r := range errorRules {
		if !slices.Contains(ownErrors, r.err) {
			engines++
		}
	}
	if n == 0 || n != engines {
		t.Fatalf("the engine has %d sentinel errors, %d have a rule", n, engines)
	}
}

func TestErrorsThatAreNoSentinels(t *testing.T) {
	for _, tc := range []struct {
		err   error
		code  codes.Code
		known bool
	}{
		{context.Canceled, codes.Canceled, true},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), codes.DeadlineExceeded, true},
		{status.Error(codes.ResourceExhausted, "too large"), codes.ResourceExhausted, true},
		{errors.New("secret detail"), codes.Internal, false},
	} {
		st, known := statusOf(tc.err)
		if st.Code() != tc.code || known != tc.known {
			t.Errorf("%v became %v, known %v", tc.err, st, known)
		}
		if !known && st.Message() == tc.err.Error() {
			t.Errorf("the text of %v was sent", tc.err)
		}
	}
	st, _ := statusOf(&fieldError{field: "page_token", err: engine.ErrInvalid})
	if f := fieldsOf(st); len(f) != 1 || f[0] != "page_token" {
		t.Errorf("fields %v", f)
	}
}

package server

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// contract are all files that have services of this service.
var contract = []protoreflect.FileDescriptor{
	reprievev1.File_reprieve_v1_feed_proto, reprievev1.File_reprieve_v1_eviction_proto,
	reprievev1.File_reprieve_v1_query_proto, reprievev1.File_reprieve_v1_admin_proto,
}

// methods returns the RPCs of the contract by full method name.
func methods() map[string]protoreflect.MethodDescriptor {
	out := map[string]protoreflect.MethodDescriptor{}
	for _, file := range contract {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				out["/"+string(s.FullName())+"/"+string(m.Name())] = m
			}
		}
	}
	return out
}

func TestEveryRPCHasARule(t *testing.T) {
	all := methods()
	for name := range all {
		if len(rolesOf[name]) == 0 {
			t.Errorf("%s has no rule: nobody can call it", name)
		}
	}
	for name := range rolesOf {
		if all[name] == nil {
			t.Errorf("there is a rule for %s, which does not exist", name)
		}
	}
}

// TestEveryRoleAndRPC calls each RPC with each role and sees whether it is let through.
func TestEveryRoleAndRPC(t *testing.T) {
	var entries []tokenEntry
	for _, r := range allRoles {
		entries = append(entries, tokenEntry{Name: string(r), Role: string(r), Clusters: []string{"east"}})
	}
	f := newFixture(t, memory(), withTokens(t, entries))
	info := f.svc.grpc.GetServiceInfo()
	for name, m := range methods() {
		if _, ok := info[string(m.Parent().FullName())]; !ok {
			t.Errorf("%s is not served", m.Parent().FullName())
		}
		for _, r := range allRoles {
			// A backup has the records of all clusters; these callers have one.
			want := slices.Contains(rolesOf[name], r) && name != reprievev1.AdminService_BackupStore_FullMethodName
			st := status.Convert(f.call(name, m, string(r)))
			if denied := st.Code() == codes.PermissionDenied; denied == want {
				t.Errorf("%s as %s: %v; want allowed %v", name, r, st, want)
			}
			if st.Code() == codes.PermissionDenied && reasonOf(st) != "PERMISSION_DENIED" || st.Code() == codes.Unimplemented {
				t.Errorf("%s as %s: %v", name, r, st)
			}
		}
		if st := status.Convert(f.callAnonymous(name, m)); st.Code() != codes.Unauthenticated || reasonOf(st) != "UNAUTHENTICATED" {
			t.Errorf("%s without credentials: %v", name, st)
		}
		if st := status.Convert(f.call(name, m, "unknown")); st.Code() != codes.Unauthenticated {
			t.Errorf("%s with an unknown token: %v", name, st)
		}
	}
}

// call makes one call with an empty request, which a caller that is let through
// has answered, or refused as bad.
func (f *fixture) call(name string, m protoreflect.MethodDescriptor, token string) error {
	return f.invoke(f.as(token), name, m)
}

func (f *fixture) callAnonymous(name string, m protoreflect.MethodDescriptor) error {
	return f.invoke(f.ctx, name, m)
}

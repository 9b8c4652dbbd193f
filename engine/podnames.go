package engine

// podNames finds a cluster's pods by their names. The pods of a namespace share
// its text.
type podNames map[string]*namespacePods

type namespacePods struct {
	name string
	pods map[string]*pod
}

// get returns the pod that has the name, nil if none has.
func (m podNames) get(namespace, name string) *pod {
	if in := m[namespace]; in != nil {
		return in.pods[name]
	}
	return nil
}

// put gives the pod its name, whoever had it before.
func (m podNames) put(p *pod) {
	in := m[p.namespace]
	if in == nil {
		in = &namespacePods{name: p.namespace, pods: map[string]*pod{}}
		m[p.namespace] = in
	}
	p.namespace = in.name
	in.pods[p.name] = p
}

// drop takes the name from the pod if it has it.
func (m podNames) drop(p *pod) {
	in := m[p.namespace]
	if in == nil || in.pods[p.name] != p {
		return
	}
	if delete(in.pods, p.name); len(in.pods) == 0 {
		delete(m, p.namespace)
	}
}

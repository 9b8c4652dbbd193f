package mem

import (
	"maps"
	"slices"

	"github.com/reprieve-dev/reprieve/engine"
)

// pageSize is how many sequences share a page.
const pageSize = 256

// pages has open evictions by their sequence. Sequences are given one after the
// other, so that most of a page is in use.
type pages map[uint64]*page

type page struct {
	versions [pageSize]engine.EvictionVersion
	used     int
}

func (p pages) put(v engine.EvictionVersion) {
	seq := v.Seq()
	at := p[seq/pageSize]
	if at == nil {
		at = &page{}
		p[seq/pageSize] = at
	}
	if at.versions[seq%pageSize] == nil {
		at.used++
	}
	at.versions[seq%pageSize] = v
}

func (p pages) remove(seq uint64) {
	at := p[seq/pageSize]
	if at == nil || at.versions[seq%pageSize] == nil {
		return
	}
	at.versions[seq%pageSize] = nil
	if at.used--; at.used == 0 {
		delete(p, seq/pageSize)
	}
}

// all returns what is there in the order of sequence.
func (p pages) all() (out []engine.EvictionVersion) {
	for _, n := range slices.Sorted(maps.Keys(p)) {
		for _, v := range p[n].versions {
			if v != nil {
				out = append(out, v)
			}
		}
	}
	return out
}

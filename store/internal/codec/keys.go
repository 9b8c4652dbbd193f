package codec

import (
	"encoding/binary"
	"fmt"

	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/history"
)

// HistoryKeySize is the size of a key of history in bytes.
const HistoryKeySize = 1 + 8 + 8

// SeqKey is the key of an open eviction.
func SeqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 0, 8), seq) }

// ParseSeqKey reads what [SeqKey] wrote.
func ParseSeqKey(k []byte) (uint64, error) {
	if len(k) != 8 {
		return 0, fmt.Errorf("%w: key of %d bytes is not a sequence", store.ErrDamaged, len(k))
	}
	return binary.BigEndian.Uint64(k), nil
}

// signBit flipped makes the bytes of negative numbers sort before those of positive ones.
const signBit = 1 << 63

// HistoryKey is the key of a closed eviction: class, time of the close, sequence.
// The class comes first so that each quota prunes from the front of its own range.
func HistoryKey(c history.Class, p history.Position) []byte {
	k := append(make([]byte, 0, HistoryKeySize), byte(c))
	k = binary.BigEndian.AppendUint64(k, uint64(p.ClosedAt)^signBit)
	return binary.BigEndian.AppendUint64(k, p.Seq)
}

// ParseHistoryKey reads what [HistoryKey] wrote.
func ParseHistoryKey(k []byte) (history.Class, history.Position, error) {
	if len(k) != HistoryKeySize || k[0] >= history.Classes {
		return 0, history.Position{}, fmt.Errorf("%w: key %x is not one of history", store.ErrDamaged, k)
	}
	return history.Class(k[0]), history.Position{
		ClosedAt: int64(binary.BigEndian.Uint64(k[1:]) ^ signBit),
		Seq:      binary.BigEndian.Uint64(k[9:]),
	}, nil
}

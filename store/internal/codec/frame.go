package codec

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/reprieve-dev/reprieve/store"
	"google.golang.org/protobuf/proto"
)

// Kind says what a value is. The values are on disk.
type Kind byte

// The kinds of value.
const (
	KindNumber Kind = iota + 1
	KindCluster
	KindNode
	KindEviction
	KindReprieve
	KindHealth
)

const (
	frameVersion = 1
	frameSize    = 6
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers the whole value but for the checksum itself.
func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:2], castagnoli), castagnoli, b[frameSize:])
}

// seal fills in the frame that b has room for at its front.
func seal(kind Kind, b []byte) []byte {
	b[0], b[1] = frameVersion, byte(kind)
	binary.BigEndian.PutUint32(b[2:], checksum(b))
	return b
}

// open checks a value's frame and returns what is in it. Its errors wrap
// [store.ErrDamaged].
func open(kind Kind, b []byte) ([]byte, error) {
	switch {
	case len(b) < frameSize:
		return nil, fmt.Errorf("%w: value of %d bytes is shorter than its frame", store.ErrDamaged, len(b))
	case b[0] != frameVersion:
		return nil, fmt.Errorf("%w: value is of version %d, this program reads version %d", store.ErrDamaged, b[0], frameVersion)
	case b[1] != byte(kind):
		return nil, fmt.Errorf("%w: value is of kind %d where kind %d belongs", store.ErrDamaged, b[1], kind)
	case binary.BigEndian.Uint32(b[2:]) != checksum(b):
		return nil, fmt.Errorf("%w: checksum of the value does not match", store.ErrDamaged)
	}
	return b[frameSize:], nil
}

func marshal(kind Kind, m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, frameSize, frameSize+proto.Size(m)), m)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrBadChange, err)
	}
	return seal(kind, b), nil
}

func unmarshal(kind Kind, b []byte, m proto.Message) error {
	payload, err := open(kind, b)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(payload, m); err != nil {
		return fmt.Errorf("%w: %w", store.ErrDamaged, err)
	}
	return nil
}

// EncodeNumber is the value of a single number.
func EncodeNumber(n uint64) []byte {
	return seal(KindNumber, binary.BigEndian.AppendUint64(make([]byte, frameSize, frameSize+8), n))
}

// DecodeNumber reads what [EncodeNumber] wrote.
func DecodeNumber(b []byte) (uint64, error) {
	payload, err := open(KindNumber, b)
	if err != nil {
		return 0, err
	}
	if len(payload) != 8 {
		return 0, fmt.Errorf("%w: number of %d bytes", store.ErrDamaged, len(payload))
	}
	return binary.BigEndian.Uint64(payload), nil
}

package main

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"google.golang.org/protobuf/proto"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// idleBeat is how often an idle feed says that it is alive, and idleScrape how often metrics are read.
	idleBeat   = 10 * time.Second
	idleScrape = 15 * time.Second
	// collectsEvery is how often Go's runtime collects garbage where nothing is allocated.
	collectsEvery = 2 * time.Minute
)

// idle measures what share of a processor the service takes while a feed with
// waits is quiet: its heartbeats, scrapes of the metrics, and the garbage
// collector's regular round, which is measured apart since it comes so rarely.
func idle(r *run1) (figures, error) {
	dir, err := os.MkdirTemp(r.dir, "idle-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := startService(r, dir, openBolt(dir))
	if err != nil {
		return nil, err
	}
	f, err := openTainted(r, s.conn, r.size/perNode, perNode, waitKey)
	if err != nil {
		return nil, err
	}
	w := startWatch()
	runtime.GC()
	collect := time.Duration(w.stop(1)["cpu"])
	length := idleScrape * time.Duration(1+r.size/1_000_000)
	used, err := s.quiet(r, f, length)
	if err != nil {
		return nil, err
	}
	cl, err := reprievev1.NewQueryServiceClient(s.conn).GetCluster(r, &reprievev1.GetClusterRequest{Cluster: clusterName})
	if err != nil {
		return nil, err
	}
	want := &reprievev1.Cluster_StateCount{State: reprievev1.EvictionState_EVICTION_STATE_WAITING, Count: uint64(r.size)}
	if got := cl.GetCluster().GetOpenEvictions(); len(got) != 1 || !proto.Equal(got[0], want) {
		return nil, fmt.Errorf("open evictions are %v, want %v", got, want)
	}
	share := func(used, of time.Duration) float64 { return 100 * used.Seconds() / of.Seconds() }
	return figures{"share": share(used, length) + share(collect, collectsEvery), "collector": share(collect, collectsEvery)}, s.stop()
}

// quiet does what goes on beside an idle service, and returns the processor time that all of it took.
func (s *service) quiet(r *run1, f *wireFeed, length time.Duration) (time.Duration, error) {
	beat, scrape, end := time.NewTicker(idleBeat), time.NewTicker(idleScrape), time.After(length+time.Second)
	defer beat.Stop()
	defer scrape.Stop()
	began := processorTime()
	for {
		select {
		case <-beat.C:
			if err := f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}); err != nil {
				return 0, err
			}
			if err := f.acked(f.seq); err != nil {
				return 0, err
			}
		case <-scrape.C:
			if _, err := s.metrics.Gather(); err != nil {
				return 0, err
			}
		case <-end:
			return processorTime() - began, nil
		case <-r.Done():
			return 0, r.Err()
		}
	}
}

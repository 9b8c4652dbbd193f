package main

// rows are all that is measured, in the order of the table.
var rows = []row{
	{
		name: "decide", work: "N pods on nodes of 500, one taint on every node, waits of an hour, memory store", full: 100_000, small: 100_000,
		sides: []side{{"ours", decideMem}, {"original", decideOriginal}},
		compare: []comparison{
			{ours: "ours/rate", theirs: "original/rate", as: "the original", unit: "waits/s", bound: atLeast, bar: 3},
			{ours: "ours/cpu", theirs: "original/cpu", as: "the original, processor time", unit: "ns of processor", bound: atMost, bar: 1.0 / 3},
		},
	},
	{
		name: "decide durably", work: "the same with bbolt and fsync, acknowledged", full: 100_000, small: 100_000,
		sides: []side{{"ours", decideBolt}, {"raw", decideRaw}},
		compare: []comparison{
			{ours: "ours/rate", theirs: "decide/original/rate", as: "the original, in memory", unit: "waits/s", bound: atLeast, bar: 0.5},
			{ours: "ours/rate", theirs: "raw/rate", as: "bbolt alone, same bytes and transactions", unit: "waits/s", bound: atLeast, bar: 0.5},
			{ours: "ours/cpu", theirs: "raw/cpu", as: "bbolt alone, processor time", unit: "ns of processor", bound: atMost, bar: 2},
		},
	},
	{
		name: "arm and cancel", work: "N waits armed by taints, then cancelled; a store that keeps nothing", full: 1_000_000, small: 200_000,
		sides: []side{{"ours", armOurs}, {"original", armOriginal}},
		compare: []comparison{
			{ours: "ours/cost", theirs: "original/cost", as: "TimedWorkerQueue", unit: "ns an operation", bound: atMost, bar: 0.2},
			{ours: "ours/cpu", theirs: "original/cpu", as: "TimedWorkerQueue, processor time", unit: "ns of processor", bound: atMost, bar: 0.2},
			{ours: "ours/bytes", theirs: "original/bytes", as: "TimedWorkerQueue", unit: "bytes a wait", bound: atMost, bar: 1.0 / 3},
		},
	},
	{
		name: "memory", work: "N pods mirrored, none waiting", full: 1_000_000, small: 200_000,
		sides: []side{{"ours", memoryOurs}, {"informer", memoryInformer}},
		compare: []comparison{
			{ours: "ours/bytes", theirs: "informer/bytes", as: "an informer's indexer, same fields", unit: "bytes a pod", bound: atMost, bar: 0.2},
		},
	},
	{
		name: "ingest", work: "N new pods through Feed, memory store", full: 1_000_000, small: 200_000,
		sides: []side{{"ours", ingestOurs}, {"raw", ingestRaw}},
		compare: []comparison{
			{ours: "ours/rate", theirs: "raw/rate", as: "a gRPC stream of the same messages", unit: "events/s", bound: atLeast, bar: 0.3},
		},
	},
	{
		name: "dispatch", work: "N evictions due at once, 8 executors over loopback gRPC, bbolt", full: 100_000, small: 20_000,
		sides: []side{{"ours", dispatchOurs}, {"raw", dispatchRaw}},
		compare: []comparison{
			{ours: "ours/rate", as: "the bar", unit: "answered/s", bound: atLeast, bar: 20_000},
			{ours: "ours/rate", theirs: "raw/rate", as: "bbolt alone, same records", unit: "answered/s", bound: atLeast, bar: 0.2},
		},
	},
	{
		name: "lateness", work: "N waits, 10,000 due each second, evenly spread", full: 1_000_000, small: 50_000,
		sides: []side{{"mem", latenessMem}, {"bolt", latenessBolt}, {"timer", idleTimer}, {"commits", idleCommits}},
		compare: []comparison{
			{ours: "mem/p99", theirs: "timer/p99", as: "an idle timer; p99 of both, memory store", unit: "ms", bound: within, bar: 5},
			{ours: "bolt/p99", theirs: "commits/p99", as: "an idle timer and two idle commits; p99, bbolt", unit: "ms", bound: within, bar: 5},
		},
	},
	{
		name: "all due at once", work: "N due in one instant, executors that take 50 ms; ours with bbolt", full: 1_000_000, small: 20_000,
		sides: []side{{"ours", allDueOurs}, {"original", allDueOriginal}},
		compare: []comparison{
			{ours: "ours/growth", theirs: "original/growth", as: "the original, no disk; growth to the peak", unit: "MiB", bound: atMost, bar: 0.1},
			{ours: "ours/anonymous", theirs: "original/anonymous", as: "the original; growth of what no file backs", unit: "MiB", bound: atMost, bar: 0.1},
		},
	},
	{
		name: "restart", work: "N open evictions, page cache warm, until the engine serves", full: 1_000_000, small: 100_000,
		sides: []side{{"ours", restartOurs}, {"raw", restartRaw}, {"ours cold", cold(restartOurs)}, {"raw cold", cold(restartRaw)}},
		compare: []comparison{
			{ours: "ours/rate", theirs: "raw/rate", as: "walk, decode and a map, one thread", unit: "evictions/s", bound: atLeast, bar: 0.5},
			{ours: "ours cold/rate", theirs: "raw cold/rate", as: "the same, both with the file out of the page cache", unit: "evictions/s", bound: atLeast, bar: 0.5},
		},
	},
	{
		name: "list", work: "pages of 1,000 of N evictions through the service, while 10,000 events come a second", full: 1_000_000, small: 200_000,
		sides: []side{{"many", listMany}, {"few", listFew}},
		compare: []comparison{
			{ours: "many/first", theirs: "few/first", as: "the first page of a hundredth as many", unit: "ms", bound: atMost, bar: 3},
			{ours: "many/next", theirs: "few/next", as: "the next page of a hundredth as many", unit: "ms", bound: atMost, bar: 3},
			{ours: "many/node", theirs: "few/node", as: "a node's page of a hundredth as many", unit: "ms", bound: atMost, bar: 3},
		},
	},
	{
		name: "storm", work: "N pods on nodes of 100, all tainted at once, then untainted", full: 100_000, small: 100_000,
		sides: []side{{"ours", stormMem}, {"original", stormOriginal}, {"ours durable", stormBolt}},
		compare: []comparison{
			{ours: "ours/rate", theirs: "original/rate", as: "the original", unit: "changes/s", bound: atLeast, bar: 3},
			{ours: "ours/growth", theirs: "original/growth", as: "the original, growth to the peak", unit: "MiB", bound: atMost, bar: 1},
			{ours: "ours durable/rate", theirs: "original/rate", as: "the original, no disk; ours with bbolt", unit: "changes/s", bound: atLeast, bar: 3},
			{ours: "ours durable/growth", theirs: "original/growth", as: "the original, growth to the peak; ours with bbolt", unit: "MiB", bound: atMost, bar: 1},
		},
	},
	{
		name: "growth", work: "N pods: what one of them takes, beside one of 10,000", full: 1_000_000, small: 200_000,
		sides: []side{{"all", growth(1)}, {"tenth", growth(10)}, {"least", growth(100)}},
		compare: []comparison{
			{ours: "all/decide", theirs: "least/decide", as: "deciding one of 10,000", unit: "ns", bound: atMost, bar: 2},
			{ours: "all/decide cpu", theirs: "least/decide cpu", as: "deciding one of 10,000, processor time", unit: "ns of processor", bound: atMost, bar: 2},
			{ours: "tenth/decide cpu", theirs: "least/decide cpu", as: "deciding one of 10,000, processor time; ours of a tenth of them", unit: "ns of processor", bound: atMost, bar: 2},
			{ours: "all/arm", theirs: "least/arm", as: "arming and cancelling one of 10,000", unit: "ns", bound: atMost, bar: 2},
			{ours: "all/arm cpu", theirs: "least/arm cpu", as: "arming and cancelling one of 10,000, processor time", unit: "ns of processor", bound: atMost, bar: 2},
			{ours: "tenth/arm cpu", theirs: "least/arm cpu", as: "arming and cancelling one of 10,000, processor time; ours of a tenth of them", unit: "ns of processor", bound: atMost, bar: 2},
			{ours: "all/list", theirs: "least/list", as: "listing one of 10,000", unit: "ns", bound: atMost, bar: 2},
			{ours: "all/list cpu", theirs: "least/list cpu", as: "listing one of 10,000, processor time", unit: "ns of processor", bound: atMost, bar: 2},
			{ours: "tenth/list cpu", theirs: "least/list cpu", as: "listing one of 10,000, processor time; ours of a tenth of them", unit: "ns of processor", bound: atMost, bar: 2},
		},
	},
	{
		name: "idle", work: "N waits, bbolt, a feed's heartbeats and scrapes of the metrics, garbage collection included", full: 1_000_000, small: 100_000,
		sides: []side{{"ours", idle}},
		compare: []comparison{
			{ours: "ours/share", as: "a core", unit: "% of a core", bound: atMost, bar: 1},
		},
	},
	{
		name: "nodes", work: "N nodes that renew every 10 s, one of them dead, watched for 30 s with a grace of 20 s; ours with its socket and bbolt", full: 5_000, small: 5_000,
		sides: []side{{"ours", nodesOurs}, {"original", nodesOriginal}},
		compare: []comparison{
			{ours: "ours/share", theirs: "original/share", as: "node-lifecycle-controller, its watches not counted", unit: "% of a core", bound: atMost, bar: 1},
			{ours: "ours/found", as: "a grace of 20 s", unit: "s", bound: atMost, bar: 25},
		},
	},
}

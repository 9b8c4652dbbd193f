package client_test

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// oneNode is a source of one node that never changes.
type oneNode struct{}

func (oneNode) List(_ context.Context, emit func(*reprievev1.Event) error) error {
	return emit(&reprievev1.Event{
		Type:   reprievev1.Event_EVENT_TYPE_UPSERT,
		Object: &reprievev1.Event_Node{Node: &reprievev1.Node{Name: "n1", Uid: "9a1c"}},
	})
}

func (oneNode) Watch(ctx context.Context, _ func(...*reprievev1.Event) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func ExampleFeeder() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	conn, err := client.Dial(ctx, client.Config{Address: "127.0.0.1:7443", Plaintext: true})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	feeder, err := client.NewFeeder(conn, client.FeederConfig{
		Cluster: "east", ClusterUID: "2f6d", FeederID: "backend-0", Source: oneNode{},
		OnSynced: func(synced bool) { log.Println("synced:", synced) },
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Println(feeder.Run(ctx))
}

func ExampleExecutor() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	conn, err := client.Dial(ctx, client.Config{
		Address: "reprieve.example.com:443", TokenFile: "/var/run/reprieve/token", TLS: client.TLS{CAFile: "ca.pem"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	executor, err := client.NewExecutor(conn, client.ExecutorConfig{
		ID: "backend-0", Clusters: []string{"east"}, Capacity: 10,
		Handler: func(ctx context.Context, t *client.Task) client.Result {
			log.Printf("delete %s/%s with UID %s", t.Pod.GetNamespace(), t.Pod.GetName(), t.Pod.GetUid())
			return client.Result{Outcome: reprievev1.Outcome_OUTCOME_EVICTED}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Println(executor.Run(ctx))
}

package orders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"

	"example.com/orders/kcoordtest"

	"github.com/twmb/franz-go/pkg/kgo"
)

const timeout = 30 * time.Second

var server *kcoordtest.Server

// One server for the package: a reset takes milliseconds.
func TestMain(m *testing.M) {
	var err error
	if server, err = kcoordtest.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestOrdersAreBilled(t *testing.T) {
	ctx := start(t)
	produce(ctx, t, "order 1")
	consumer := join(t)
	if value := next(ctx, t, consumer); value != "order 1" {
		t.Fatalf("consumed %q", value)
	}
	if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	control(ctx, t, nil, "wait_committed", kcoordtest.Args{"group": "billing", "topic": "orders", "partition": 0, "offset": 1})
}

// The coordinator stores the offset, and the connection is closed before the client gets the answer.
func TestACommitWithoutAnAnswerIsRepeated(t *testing.T) {
	ctx := start(t)
	produce(ctx, t, "order 1")
	consumer := join(t)
	next(ctx, t, consumer)
	var rule struct{ ID, Hits int }
	control(ctx, t, &rule, "cut", kcoordtest.Args{"api": "OffsetCommit", "at": "after", "group": "billing"})
	if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	control(ctx, t, &rule, "rule", kcoordtest.Args{"id": rule.ID})
	if rule.Hits != 1 {
		t.Errorf("the rule acted on %d requests", rule.Hits)
	}
	var requests []struct {
		IsHandled bool `json:"is_handled"`
		IsSent    bool `json:"is_sent"`
	}
	control(ctx, t, &requests, "requests", kcoordtest.Args{"api": "OffsetCommit", "group": "billing"})
	if len(requests) != 2 || !requests[0].IsHandled || requests[0].IsSent || !requests[1].IsSent {
		t.Errorf("the server received %+v", requests)
	}
	var offsets []committed
	control(ctx, t, &offsets, "committed", kcoordtest.Args{"group": "billing"})
	if !reflect.DeepEqual(offsets, []committed{{"orders", 0, 1}}) {
		t.Errorf("committed: %v", offsets)
	}
}

// The member learns from its next heartbeat that its session has ended. Nobody waits for a timeout.
func TestAMemberComesBackAfterItsSessionHasEnded(t *testing.T) {
	ctx := start(t)
	produce(ctx, t, "order 1")
	lost := make(chan map[string][]int32, 1)
	consumer := join(t, kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		lost <- partitions
	}))
	next(ctx, t, consumer)
	if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	control(ctx, t, nil, "wait_stable", kcoordtest.Args{"group": "billing", "members": 1})
	control(ctx, t, nil, "expire_member", kcoordtest.Args{"group": "billing"})
	select {
	case partitions := <-lost:
		if !reflect.DeepEqual(partitions, map[string][]int32{"orders": {0}}) {
			t.Errorf("lost: %v", partitions)
		}
	case <-ctx.Done():
		t.Fatal("the member lost no partitions")
	}
	control(ctx, t, nil, "wait_stable", kcoordtest.Args{"group": "billing", "members": 1})
	produce(ctx, t, "order 2")
	if value := next(ctx, t, consumer); value != "order 2" {
		t.Fatalf("consumed %q", value)
	}
}

type committed struct {
	Topic     string
	Partition int
	Offset    int64
}

// start empties the server and returns a context that bounds the test.
func start(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	control(ctx, t, nil, "reset", nil)
	return ctx
}

// control calls an operation of the package's server and decodes its result.
func control(ctx context.Context, t *testing.T, result any, operation string, args kcoordtest.Args) {
	t.Helper()
	controlOf(ctx, t, server, result, operation, args)
}

func controlOf(ctx context.Context, t *testing.T, server *kcoordtest.Server, result any, operation string, args kcoordtest.Args) {
	t.Helper()
	data, err := server.Control(ctx, operation, args)
	if err == nil && result != nil {
		err = json.Unmarshal(data, result)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func produce(ctx context.Context, t *testing.T, value string) {
	t.Helper()
	producer, err := kgo.NewClient(kgo.SeedBrokers(server.Bootstrap), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	if err := producer.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte(value)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// join returns a member of the group that leaves when the test ends. Only the test commits.
func join(t *testing.T, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	consumer, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(server.Bootstrap),
		kgo.ConsumerGroup("billing"),
		kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(100 * time.Millisecond),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(consumer.Close)
	return consumer
}

// next returns the value of the next record. That a session has ended is no failure: the client joins again.
func next(ctx context.Context, t *testing.T, consumer *kgo.Client) string {
	t.Helper()
	for {
		fetches := consumer.PollRecords(ctx, 1)
		if records := fetches.Records(); len(records) > 0 {
			return string(records[0].Value)
		}
		var session *kgo.ErrGroupSession
		if err := fetches.Err(); err != nil && !errors.As(err, &session) {
			t.Fatal(err)
		}
	}
}

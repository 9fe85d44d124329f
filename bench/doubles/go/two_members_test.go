// Package doubles has the test of bench/fixture.py in Go: against a new kfake for each test, or against the broker at
// DOUBLES_BROKER. It prints `start MS` for each kfake and `test MS` for each test.
package doubles

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	partitions = 4
	heartbeat  = 100 * time.Millisecond
	limit      = 60 * time.Second
)

func TestTwoMembers(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("DOUBLES_TESTS"))
	if err != nil {
		t.Fatalf("DOUBLES_TESTS is the number of tests: %v", err)
	}
	for number := range count {
		t.Run(strconv.Itoa(number), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			began := time.Now()
			twoMembers(ctx, t, brokers(t), fmt.Sprintf("t%d-%d", os.Getpid(), number))
			fmt.Printf("test %.3f\n", ms(began))
		})
	}
}

func ms(began time.Time) float64 {
	return float64(time.Since(began).Microseconds()) / 1000
}

func brokers(t *testing.T) []string {
	if address := os.Getenv("DOUBLES_BROKER"); address != "" {
		return []string{address}
	}
	began := time.Now()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	fmt.Printf("start %.3f\n", ms(began))
	return cluster.ListenAddrs()
}

// member is a consumer with a goroutine that polls. `assigned` gets the number of its partitions after each change,
// `records` the records.
type member struct {
	client   *kgo.Client
	owned    map[int32]bool
	assigned chan int
	records  chan *kgo.Record
	ended    chan struct{}
}

func join(ctx context.Context, t *testing.T, brokers []string, name string) *member {
	m := &member{owned: map[int32]bool{}, assigned: make(chan int, 100), records: make(chan *kgo.Record, 100), ended: make(chan struct{})}
	change := func(isOwned bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			for _, partition := range changed[name] {
				if isOwned {
					m.owned[partition] = true
				} else {
					delete(m.owned, partition)
				}
			}
			if isOwned {
				m.assigned <- len(m.owned)
			}
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(name), kgo.ConsumeTopics(name), kgo.HeartbeatInterval(heartbeat),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.Balancers(kgo.RangeBalancer()),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)),
	)
	if err != nil {
		t.Fatal(err)
	}
	m.client = client
	go func() {
		defer close(m.ended)
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			if fetches.IsClientClosed() {
				return
			}
			fetches.EachRecord(func(record *kgo.Record) { m.records <- record })
		}
	}()
	return m
}

func (m *member) wait(ctx context.Context, t *testing.T, wanted int) {
	for {
		select {
		case count := <-m.assigned:
			if count == wanted {
				return
			}
		case <-ctx.Done():
			t.Fatalf("never had %d partitions", wanted)
		}
	}
}

// One member has all partitions, a second one joins, each has half of them and reads its records, and both leave.
func twoMembers(ctx context.Context, t *testing.T, brokers []string, name string) {
	producer, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	request := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
	request.Topics = append(request.Topics, topic)
	if _, err := request.RequestWith(ctx, producer); err != nil {
		t.Fatal(err)
	}
	first := join(ctx, t, brokers, name)
	first.wait(ctx, t, partitions)
	second := join(ctx, t, brokers, name)
	second.wait(ctx, t, partitions/2)
	first.wait(ctx, t, partitions/2)
	for partition := range int32(partitions) {
		record := &kgo.Record{Topic: name, Partition: partition, Value: []byte("order")}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for range partitions {
		select {
		case <-first.records:
		case <-second.records:
		case <-ctx.Done():
			t.Fatal("a record was not read")
		}
	}
	for _, m := range []*member{first, second} {
		m.client.CloseAllowingRebalance()
		<-m.ended
	}
}

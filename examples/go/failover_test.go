package orders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/orders/kcoordtest"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 6
	// How many records each step of the test waits for.
	enough = 60
)

// The coordinator of the group stops, it moves, and the leaders move: the members go on, and what was committed is
// neither lost nor read again.
func TestAGroupSurvivesItsCoordinator(t *testing.T) {
	cluster, err := kcoordtest.Start("--set", "control.brokers=3")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	protocols := map[string][]kgo.Opt{
		"classic":  {kgo.HeartbeatInterval(100 * time.Millisecond)},
		"consumer": {kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())}, // KIP-848
	}
	for protocol, options := range protocols {
		t.Run(protocol, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			topic := "orders-" + protocol
			controlOf(ctx, t, cluster, nil, "create_topic", kcoordtest.Args{"name": topic, "partitions": partitions})
			work := startWork(ctx, t, cluster.Bootstrap, topic, options)
			work.more(ctx, t)

			var stopped int
			controlOf(ctx, t, cluster, &stopped, "coordinator", kcoordtest.Args{"group": topic})
			controlOf(ctx, t, cluster, nil, "stop_broker", kcoordtest.Args{"node_id": stopped})
			work.more(ctx, t)

			controlOf(ctx, t, cluster, nil, "start_broker", kcoordtest.Args{"node_id": stopped})
			controlOf(ctx, t, cluster, nil, "move_coordinator", kcoordtest.Args{"group": topic, "node_id": stopped})
			work.more(ctx, t)

			for partition := range partitions {
				controlOf(ctx, t, cluster, nil, "move_leader", kcoordtest.Args{"topic": topic, "partition": partition, "node_id": stopped})
			}
			work.more(ctx, t)
			written := work.finish(ctx, t)

			var heartbeats []json.RawMessage
			controlOf(ctx, t, cluster, &heartbeats, "requests", kcoordtest.Args{"api": "ConsumerGroupHeartbeat", "group": topic})
			if isNew := len(heartbeats) > 0; isNew != (protocol == "consumer") {
				t.Errorf("%d heartbeats of KIP-848", len(heartbeats))
			}
			var offsets []committed
			controlOf(ctx, t, cluster, &offsets, "committed", kcoordtest.Args{"group": topic})
			var sum int64
			for _, one := range offsets {
				sum += one.Offset
			}
			if sum != written {
				t.Errorf("%d records written, and committed: %v", written, offsets)
			}
		})
	}
}

// impatient are options of a client that looks for the new leader or coordinator at once, and not after seconds.
func impatient(bootstrap string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.MetadataMinAge(20 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
	}
}

// work is a producer and two members of a group that commit after each poll.
type work struct {
	written, read atomic.Int64
	cancel        context.CancelFunc
	produced      chan struct{} // closed when nothing is written any more
	done          sync.WaitGroup

	mutex     sync.Mutex
	values    map[string]bool
	committed map[int32]int64 // by partition, what a commit has confirmed
	problems  []string
}

func startWork(ctx context.Context, t *testing.T, bootstrap, topic string, options []kgo.Opt) *work {
	t.Helper()
	w := &work{produced: make(chan struct{}), values: map[string]bool{}, committed: map[int32]int64{}}
	writing, cancel := context.WithCancel(ctx)
	w.cancel = cancel
	producer, err := kgo.NewClient(append(impatient(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	w.done.Go(func() {
		defer producer.Close()
		w.produce(ctx, writing, producer, topic)
	})
	for range 2 {
		consumer, err := kgo.NewClient(append(append(impatient(bootstrap),
			kgo.ConsumerGroup(topic),
			kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.DisableAutoCommit(),
		), options...)...)
		if err != nil {
			t.Fatal(err)
		}
		w.done.Go(func() {
			defer consumer.Close()
			w.consume(ctx, consumer)
		})
	}
	return w
}

// produce writes until `writing` ends. The records in flight then are written all the same.
func (w *work) produce(ctx, writing context.Context, producer *kgo.Client, topic string) {
	defer close(w.produced)
	for number := int64(0); writing.Err() == nil; number++ {
		record := &kgo.Record{Topic: topic, Partition: int32(number % partitions), Value: fmt.Append(nil, number)}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			w.problem("produce: %v", err)
			return
		}
		w.written.Add(1)
	}
}

// consume reads until nothing is written any more and everything is read.
func (w *work) consume(ctx context.Context, consumer *kgo.Client) {
	for ctx.Err() == nil && !w.isOver() {
		waiting, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := consumer.PollRecords(waiting, 20)
		cancel()
		records := fetches.Records()
		w.note(records)
		if len(records) == 0 {
			continue
		}
		// A commit between two generations is refused: the records come again.
		if err := consumer.CommitRecords(ctx, records...); err == nil {
			w.confirm(records)
		}
	}
}

func (w *work) note(records []*kgo.Record) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, record := range records {
		w.values[string(record.Value)] = true
		if record.Offset < w.committed[record.Partition] {
			w.problems = append(w.problems, fmt.Sprintf("partition %d, offset %d was read after its commit", record.Partition, record.Offset))
		}
	}
	w.read.Add(int64(len(records)))
}

func (w *work) confirm(records []*kgo.Record) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, record := range records {
		w.committed[record.Partition] = max(w.committed[record.Partition], record.Offset+1)
	}
}

func (w *work) isOver() bool {
	select {
	case <-w.produced:
		return w.distinct() >= w.written.Load()
	default:
		return false
	}
}

func (w *work) distinct() int64 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return int64(len(w.values))
}

func (w *work) problem(format string, args ...any) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// more waits until so many more records were written and read.
func (w *work) more(ctx context.Context, t *testing.T) {
	t.Helper()
	written, read := w.written.Load()+enough, w.read.Load()+enough
	for w.written.Load() < written || w.read.Load() < read {
		select {
		case <-ctx.Done():
			t.Fatalf("%d written, %d read; %v", w.written.Load(), w.read.Load(), w.problems)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// finish ends the work when everything is read, and returns how many records there are.
func (w *work) finish(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	w.cancel()
	w.done.Wait()
	if err := ctx.Err(); err != nil {
		t.Error(errors.New("not everything was read"), err)
	}
	if len(w.problems) > 0 {
		t.Error(w.problems)
	}
	if w.distinct() != w.written.Load() {
		t.Errorf("%d written, %d read", w.written.Load(), w.distinct())
	}
	return w.written.Load()
}

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.test.EmbeddedKafkaBroker;
import org.springframework.kafka.test.EmbeddedKafkaKraftBroker;

/**
 * The test of bench/fixture.py in Java: TwoMembers embedded|HOST:PORT TESTS THREADS.
 *
 * <p>Prints `start MS` for the embedded broker, which all tests share, and `test MS` for each test.
 */
public final class TwoMembers {
    private static final int PARTITIONS = 4;
    private static final long LIMIT_NS = 60_000_000_000L;

    private TwoMembers() {
    }

    public static void main(String[] args) throws Exception {
        if (!args[0].equals("embedded")) {
            runAll(args[0], Integer.parseInt(args[1]), Integer.parseInt(args[2]));
            return;
        }
        long began = System.nanoTime();
        EmbeddedKafkaBroker broker = new EmbeddedKafkaKraftBroker(1, PARTITIONS)
            .brokerProperty("group.initial.rebalance.delay.ms", "0");
        broker.afterPropertiesSet();
        report("start", began);
        try {
            runAll(broker.getBrokersAsString(), Integer.parseInt(args[1]), Integer.parseInt(args[2]));
        } finally {
            broker.destroy();
        }
    }

    private static synchronized void report(String what, long began) {
        System.out.printf("%s %.3f%n", what, (System.nanoTime() - began) / 1e6);
    }

    private static void runAll(String address, int tests, int threads) throws InterruptedException, ExecutionException {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Callable<Void>> work = new ArrayList<>();
        for (int number = 0; number < tests; number++) {
            String name = "t" + ProcessHandle.current().pid() + "-" + number;
            work.add(() -> {
                long began = System.nanoTime();
                twoMembers(address, name);
                report("test", began);
                return null;
            });
        }
        for (Future<Void> done : pool.invokeAll(work)) {
            done.get();
        }
        pool.shutdown();
    }

    /** One member has all partitions, a second one joins, each has half of them and reads its records, and both leave. */
    private static void twoMembers(String address, String name) throws Exception {
        Map<String, Object> common = Map.of("bootstrap.servers", address);
        try (Admin admin = Admin.create(common)) {
            admin.createTopics(List.of(new NewTopic(name, PARTITIONS, (short) 1))).all().get();
        }
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", address, "group.id", name, "auto.offset.reset", "earliest",
            "heartbeat.interval.ms", 100,
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        try (KafkaConsumer<String, String> first = member(settings, name);
             KafkaConsumer<String, String> second = member(settings, name);
             KafkaProducer<String, String> producer =
                 new KafkaProducer<>(common, new StringSerializer(), new StringSerializer())) {
            long began = System.nanoTime();
            while (first.assignment().size() < PARTITIONS) {
                poll(first, began);
            }
            while (first.assignment().size() != PARTITIONS / 2 || second.assignment().size() != PARTITIONS / 2) {
                poll(first, began);
                poll(second, began);
            }
            for (int partition = 0; partition < PARTITIONS; partition++) {
                producer.send(new ProducerRecord<>(name, partition, null, "order")).get();
            }
            int read = 0;
            while (read < PARTITIONS) {
                read += poll(first, began) + poll(second, began);
            }
        }
    }

    private static KafkaConsumer<String, String> member(Map<String, Object> settings, String topic) {
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    private static int poll(KafkaConsumer<String, String> consumer, long began) {
        if (System.nanoTime() - began > LIMIT_NS) {
            throw new IllegalStateException("the test takes too long");
        }
        return consumer.poll(Duration.ofMillis(10)).count();
    }
}

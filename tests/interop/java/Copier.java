import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies a topic with transactions, exactly once, for ever: the Java client of tests/crash/kill_copies.py.
 *
 *   java Copier HOST:PORT SOURCE TARGET BATCH
 *
 * It is a static member of the group TARGET, so that a killed one is replaced at once, and its offsets are fenced by
 * the group. What it prints is described in tests/crash/copy_client.py.
 */
public final class Copier {
    private static final int ABORTS_EVERY = 5;
    private static final int TOO_FAR = 1000;

    private final String bootstrap;
    private final String source;
    private final String target;
    private final String batch;

    private Copier(String[] arguments) {
        bootstrap = arguments[0];
        source = arguments[1];
        target = arguments[2];
        batch = arguments[3];
    }

    public static void main(String[] arguments) {
        Copier copier = new Copier(arguments);
        while (true) {
            try {
                copier.copy();
            } catch (RuntimeException e) {
                System.out.println("failed " + e.getClass().getSimpleName());
            }
        }
    }

    private Properties common() {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("reconnect.backoff.max.ms", "200");
        p.put("request.timeout.ms", "5000");
        p.put("retry.backoff.max.ms", "200");
        return p;
    }

    private KafkaConsumer<String, String> consumer() {
        Properties p = common();
        p.put("group.id", target);
        p.put("group.instance.id", target);
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        p.put("isolation.level", "read_committed");
        p.put("max.poll.records", batch);
        return new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
    }

    private KafkaProducer<String, String> producer() {
        Properties p = common();
        p.put("transactional.id", target);
        p.put("linger.ms", "0");
        p.put("delivery.timeout.ms", "20000");
        p.put("max.block.ms", "20000");
        return new KafkaProducer<>(p, new StringSerializer(), new StringSerializer());
    }

    /** Until the first error that the library does not hide. The next producer aborts what this one left open. */
    private void copy() {
        KafkaProducer<String, String> producer = producer();
        try (KafkaConsumer<String, String> consumer = consumer()) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            for (int number = 0; ; ) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                if (number % ABORTS_EVERY == 0) abort(consumer, producer, records);
                number++;
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
                }
                Map<TopicPartition, OffsetAndMetadata> offsets = records.nextOffsets();
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
                report(offsets);
            }
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    /** A transaction with a record that nobody may read, and offsets that nobody may start from. */
    private void abort(KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer,
            ConsumerRecords<String, String> records) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        records.nextOffsets().forEach((partition, offset) -> {
            producer.send(new ProducerRecord<>(target, partition.partition(), null, "aborted"));
            offsets.put(partition, new OffsetAndMetadata(offset.offset() + TOO_FAR));
        });
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.flush();
        producer.abortTransaction();
    }

    private static void report(Map<TopicPartition, OffsetAndMetadata> offsets) {
        Map<Integer, Long> sorted = new TreeMap<>();
        offsets.forEach((partition, offset) -> sorted.put(partition.partition(), offset.offset()));
        StringBuilder line = new StringBuilder("copied");
        sorted.forEach((partition, offset) -> line.append(' ').append(partition).append(':').append(offset));
        System.out.println(line);
        System.out.flush();
    }
}

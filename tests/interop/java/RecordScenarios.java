import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** Producing and reading records without a group. */
final class RecordScenarios {
    private RecordScenarios() { }

    static void addTo(Map<String, Scenarios.Body> all) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            all.put("compression-" + codec, () -> compression(codec));
        }
        all.put("idempotent-producer", RecordScenarios::idempotent);
        all.put("acks", RecordScenarios::acks);
        all.put("auto-created-topic", RecordScenarios::autoCreated);
        all.put("positions", RecordScenarios::positions);
        all.put("long-poll", RecordScenarios::longPoll);
        all.put("large-records", RecordScenarios::large);
    }

    private static void compression(String codec) throws Exception {
        String topic = Scenarios.named("compression-" + codec);
        int count = 300;
        Scenarios.createTopic(topic, 3);
        try (KafkaProducer<String, String> producer = Scenarios.producer("compression.type", codec, "linger.ms", "20")) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                ProducerRecord<String, String> record = new ProducerRecord<>(topic, "key " + i, "value " + "x".repeat(i));
                record.headers().add("n", String.valueOf(i).getBytes(StandardCharsets.UTF_8)).add("empty", null);
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> future : sent) future.get(Scenarios.DEADLINE_MS, TimeUnit.MILLISECONDS);
        }
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null)) {
            consumer.assign(Scenarios.partitions(topic, 3));
            consumer.seekToBeginning(consumer.assignment());
            List<ConsumerRecord<String, String>> got = Scenarios.pollUntil(consumer, count);
            boolean[] seen = new boolean[count];
            boolean same = true;
            for (ConsumerRecord<String, String> record : got) {
                int n = Integer.parseInt(new String(record.headers().lastHeader("n").value(), StandardCharsets.UTF_8));
                same &= record.key().equals("key " + n) && record.value().equals("value " + "x".repeat(n));
                same &= record.headers().lastHeader("empty").value() == null && !seen[n];
                seen[n] = true;
            }
            Scenarios.fact("received", got.size());
            Scenarios.fact("all as sent", same);
        }
    }

    private static void idempotent() throws Exception {
        String topic = Scenarios.named("idempotent");
        Scenarios.createTopic(topic, 1);
        List<Long> offsets = new ArrayList<>();
        try (KafkaProducer<String, String> producer = Scenarios.producer(
                "enable.idempotence", "true", "acks", "all", "max.in.flight.requests.per.connection", "5", "batch.size", "200")) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < 1000; i++) sent.add(producer.send(new ProducerRecord<>(topic, "key", "value " + i)));
            for (Future<RecordMetadata> future : sent) {
                offsets.add(future.get(Scenarios.DEADLINE_MS, TimeUnit.MILLISECONDS).offset());
            }
        }
        boolean inOrder = true;
        for (int i = 0; i < offsets.size(); i++) inOrder &= offsets.get(i) == i;
        Scenarios.fact("offsets without gap or double", inOrder);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null, "isolation.level", "read_committed")) {
            consumer.assign(Scenarios.partitions(topic, 1));
            List<ConsumerRecord<String, String>> got = Scenarios.pollUntil(consumer, 1000);
            boolean same = got.size() == 1000;
            for (int i = 0; i < got.size(); i++) same &= got.get(i).value().equals("value " + i);
            Scenarios.fact("read in order", same);
        }
    }

    private static void acks() throws Exception {
        String topic = Scenarios.named("acks");
        Scenarios.createTopic(topic, 1);
        for (String acks : List.of("0", "1", "all")) {
            try (KafkaProducer<String, String> producer = Scenarios.producer("acks", acks, "enable.idempotence", "false")) {
                RecordMetadata done = producer.send(new ProducerRecord<>(topic, "acks " + acks)).get(Scenarios.DEADLINE_MS, TimeUnit.MILLISECONDS);
                Scenarios.fact("offset with acks " + acks, done.offset());
            }
        }
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null)) {
            consumer.assign(Scenarios.partitions(topic, 1));
            List<String> values = new ArrayList<>();
            for (ConsumerRecord<String, String> record : Scenarios.pollUntil(consumer, 3)) values.add(record.value());
            Scenarios.fact("values", values);
        }
    }

    private static void autoCreated() throws Exception {
        String topic = Scenarios.named("auto-created");
        try (KafkaProducer<String, String> producer = Scenarios.producer()) {
            RecordMetadata done = producer.send(new ProducerRecord<>(topic, "hello")).get(Scenarios.DEADLINE_MS, TimeUnit.MILLISECONDS);
            Scenarios.fact("offset", done.offset());
            Scenarios.fact("partitions", producer.partitionsFor(topic).size());
        }
    }

    private static void positions() throws Exception {
        String topic = Scenarios.named("positions");
        Scenarios.createTopic(topic, 2, Map.of("retention.ms", "-1"));
        Scenarios.produce(topic, 2, 0, 20);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null)) {
            List<TopicPartition> both = List.of(first, second);
            consumer.assign(both);
            Scenarios.fact("beginning", Scenarios.byNumber(consumer.beginningOffsets(both)));
            Scenarios.fact("end", Scenarios.byNumber(consumer.endOffsets(both)));
            Map<TopicPartition, Long> times = new HashMap<>();
            times.put(first, 1_700_000_000_000L + 7_500);
            times.put(second, 1_700_000_000_000L + 100_000);
            Map<TopicPartition, OffsetAndTimestamp> found = consumer.offsetsForTimes(times);
            Scenarios.fact("offset at a time", found.get(first).offset());
            Scenarios.fact("time at that offset", found.get(first).timestamp());
            Scenarios.fact("nothing at a late time", found.get(second) == null);
            consumer.seek(first, 5);
            consumer.seekToEnd(List.of(second));
            Scenarios.fact("position after seek", consumer.position(first));
            Scenarios.fact("position at the end", consumer.position(second));
            ConsumerRecord<String, String> next = Scenarios.pollUntil(consumer, 1).get(0);
            Scenarios.fact("first record after seek", next.offset() + " " + next.value() + " " + next.timestamp());
            consumer.seekToBeginning(both);
            Scenarios.fact("records from the beginning", Scenarios.pollUntil(consumer, 20).size());
            Scenarios.fact("lag at the end", consumer.currentLag(first).getAsLong());
            consumer.pause(List.of(first));
            consumer.seekToBeginning(both);
            Scenarios.fact("records while one is paused", Scenarios.pollUntil(consumer, 10).size());
            consumer.resume(List.of(first));
            Scenarios.fact("records after resume", Scenarios.pollUntil(consumer, 10).size());
            Map<String, Integer> topics = new TreeMap<>();
            consumer.listTopics().forEach((name, infos) -> {
                if (name.equals(topic)) topics.put("partitions", infos.size());
            });
            Scenarios.fact("listed with", topics);
        }
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null, "auto.offset.reset", "none")) {
            consumer.assign(List.of(first));
            consumer.seek(first, 1000);
            try {
                consumer.poll(Duration.ofSeconds(5));
                Scenarios.fact("a seek beyond the end", "none");
            } catch (RuntimeException e) {
                Scenarios.fact("a seek beyond the end", e.getClass().getSimpleName());
            }
        }
    }

    private static void longPoll() throws Exception {
        String topic = Scenarios.named("long-poll");
        Scenarios.createTopic(topic, 1);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null, "fetch.max.wait.ms", "2500");
             KafkaProducer<String, String> producer = Scenarios.producer()) {
            consumer.assign(Scenarios.partitions(topic, 1));
            producer.send(new ProducerRecord<>(topic, "warm up")).get(Scenarios.DEADLINE_MS, TimeUnit.MILLISECONDS);
            Scenarios.pollUntil(consumer, 1);
            consumer.poll(Duration.ofMillis(200));
            producer.send(new ProducerRecord<>(topic, "hello")).get(Scenarios.DEADLINE_MS, TimeUnit.MILLISECONDS);
            long start = System.nanoTime();
            Scenarios.fact("received", Scenarios.pollUntil(consumer, 1).size());
            Scenarios.fact("woken within a second", System.nanoTime() - start < 1_000_000_000L);
        }
    }

    private static void large() throws Exception {
        String topic = Scenarios.named("large");
        Scenarios.createTopic(topic, 1);
        try (KafkaProducer<String, String> producer = Scenarios.producer("max.request.size", "5000000", "buffer.memory", "8000000")) {
            producer.send(new ProducerRecord<>(topic, "y".repeat(900_000))).get(Scenarios.DEADLINE_MS, TimeUnit.MILLISECONDS);
            try {
                producer.send(new ProducerRecord<>(topic, "y".repeat(2_000_000))).get(Scenarios.DEADLINE_MS, TimeUnit.MILLISECONDS);
                Scenarios.fact("too large", "none");
            } catch (java.util.concurrent.ExecutionException e) {
                Scenarios.fact("too large", e.getCause().getClass().getSimpleName());
            }
        }
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null, "max.partition.fetch.bytes", "1000", "fetch.max.bytes", "1000")) {
            consumer.assign(Scenarios.partitions(topic, 1));
            Scenarios.fact("length through a small fetch", Scenarios.pollUntil(consumer, 1).get(0).value().length());
        }
    }
}

import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs scenarios with Kafka's own Java clients against one bootstrap address and prints what came out.
 *
 *   java Scenarios HOST:PORT PREFIX NAME...
 *
 * One JSON object per line: {"scenario":..,"fact":..,"value":..}, or {"scenario":..,"error":..} when a scenario broke.
 * All topics and groups start with PREFIX. The assertions live in Python; nothing here judges a fact.
 */
public final class Scenarios {
    interface Body {
        void run() throws Exception;
    }

    static final ObjectMapper MAPPER = new ObjectMapper();
    static final long DEADLINE_MS = 30_000;

    static String bootstrap;
    static String prefix;
    private static String current;

    static void fact(String name, Object value) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", current);
        line.put("fact", name);
        line.put("value", value);
        synchronized (System.out) {
            System.out.println(MAPPER.writeValueAsString(line));
            System.out.flush();
        }
    }

    static String named(String name) {
        return prefix + name;
    }

    static void waitFor(String what, BooleanSupplier condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(DEADLINE_MS);
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) throw new IllegalStateException("waited in vain for " + what);
            Thread.sleep(10);
        }
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(DEADLINE_MS, TimeUnit.MILLISECONDS);
    }

    /** Simple name of the error that the future ends with, or "none". */
    static String errorOf(KafkaFuture<?> future) throws Exception {
        try {
            get(future);
            return "none";
        } catch (ExecutionException e) {
            return e.getCause().getClass().getSimpleName();
        }
    }

    static Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", "20000", "request.timeout.ms", "10000"));
    }

    static void createTopic(String name, int partitions) throws Exception {
        createTopic(name, partitions, Map.of());
    }

    static void createTopic(String name, int partitions, Map<String, String> configs) throws Exception {
        try (Admin admin = admin()) {
            get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs))).all());
            waitFor("the new topic " + name, () -> described(admin, name) == partitions);
        }
    }

    /** The number of partitions that have a leader; 0 while the topic is unknown. */
    static long described(Admin admin, String topic) {
        try {
            var partitions = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions();
            return partitions.stream().filter(partition -> partition.leader() != null).count();
        } catch (Exception e) {
            return 0;
        }
    }

    static KafkaProducer<String, String> producer(String... settings) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("delivery.timeout.ms", "20000");
        p.put("request.timeout.ms", "10000");
        p.put("linger.ms", "0");
        for (int i = 0; i < settings.length; i += 2) p.put(settings[i], settings[i + 1]);
        return new KafkaProducer<>(p, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, String... settings) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        if (group != null) p.put("group.id", group);
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        p.put("heartbeat.interval.ms", "200");
        p.put("session.timeout.ms", "10000");
        p.put("metadata.max.age.ms", "500");
        p.put("default.api.timeout.ms", "20000");
        p.put("request.timeout.ms", "15000");
        for (int i = 0; i < settings.length; i += 2) p.put(settings[i], settings[i + 1]);
        if ("consumer".equals(p.get("group.protocol"))) {
            // These are the server's there.
            p.remove("heartbeat.interval.ms");
            p.remove("session.timeout.ms");
        }
        return new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
    }

    /** Sends "value FIRST".."value FIRST+COUNT-1" with keys "key N", round robin over the partitions. */
    static List<RecordMetadata> produce(String topic, int partitions, int first, int count) throws Exception {
        List<RecordMetadata> done = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer()) {
            List<java.util.concurrent.Future<RecordMetadata>> futures = new ArrayList<>();
            for (int i = first; i < first + count; i++) {
                long time = 1_700_000_000_000L + i * 1000L;
                futures.add(producer.send(new ProducerRecord<>(topic, i % partitions, time, "key " + i, "value " + i)));
            }
            for (var future : futures) done.add(future.get(DEADLINE_MS, TimeUnit.MILLISECONDS));
        }
        return done;
    }

    static List<ConsumerRecord<String, String>> pollUntil(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> all = new ArrayList<>();
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(DEADLINE_MS);
        while (all.size() < count && System.nanoTime() < end) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) all.add(record);
        }
        return all;
    }

    static List<ConsumerRecord<String, String>> pollFor(KafkaConsumer<String, String> consumer, long millis) {
        List<ConsumerRecord<String, String>> all = new ArrayList<>();
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        while (System.nanoTime() < end) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) all.add(record);
        }
        return all;
    }

    static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> all = new ArrayList<>();
        for (int i = 0; i < count; i++) all.add(new TopicPartition(topic, i));
        return all;
    }

    /** Partition numbers, sorted. */
    static List<Integer> numbers(Collection<TopicPartition> partitions) {
        TreeSet<Integer> sorted = new TreeSet<>();
        for (TopicPartition partition : partitions) sorted.add(partition.partition());
        return new ArrayList<>(sorted);
    }

    static Map<String, Long> byNumber(Map<TopicPartition, Long> offsets) {
        Map<String, Long> sorted = new TreeMap<>();
        offsets.forEach((partition, offset) -> sorted.put(String.valueOf(partition.partition()), offset));
        return sorted;
    }

    /** A consumer on a thread of its own that polls until it is stopped. */
    static final class Member implements Runnable, ConsumerRebalanceListener, AutoCloseable {
        final KafkaConsumer<String, String> consumer;
        final List<String> values = new ArrayList<>();
        final List<String> events = new ArrayList<>();
        private final Set<TopicPartition> owned = new HashSet<>();
        private final Thread thread = new Thread(this);
        private volatile boolean stopping;
        private volatile CloseOptions.GroupMembershipOperation atClose = CloseOptions.GroupMembershipOperation.DEFAULT;
        private volatile Throwable failure;

        Member(String group, String topic, String... settings) {
            consumer = consumer(group, settings);
            consumer.subscribe(List.of(topic), this);
            thread.start();
        }

        Member(String group, SubscriptionPattern pattern, String... settings) {
            consumer = consumer(group, settings);
            consumer.subscribe(pattern, this);
            thread.start();
        }

        @Override
        public void run() {
            try {
                while (!stopping) {
                    var records = consumer.poll(Duration.ofMillis(100));
                    synchronized (this) {
                        for (ConsumerRecord<String, String> record : records) values.add(record.value());
                    }
                    if (!records.isEmpty()) consumer.commitSync();
                }
            } catch (WakeupException e) {
                // stopped
            } catch (Throwable e) {
                failure = e;
            } finally {
                consumer.close(CloseOptions.groupMembershipOperation(atClose));
            }
        }

        @Override
        public synchronized void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (partitions.isEmpty()) return;
            owned.removeAll(partitions);
            events.add("revoked " + numbers(partitions));
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            owned.addAll(partitions);
            events.add("assigned " + numbers(partitions));
        }

        @Override
        public synchronized void onPartitionsLost(Collection<TopicPartition> partitions) {
            owned.removeAll(partitions);
            events.add("lost " + numbers(partitions));
        }

        synchronized int owns() {
            if (failure != null) throw new IllegalStateException("a member failed", failure);
            return owned.size();
        }

        synchronized List<Integer> owned() {
            return numbers(owned);
        }

        synchronized int seen() {
            return values.size();
        }

        synchronized List<String> events() {
            return new ArrayList<>(events);
        }

        void close(CloseOptions.GroupMembershipOperation operation) throws Exception {
            atClose = operation;
            close();
        }

        /** Simple name of the error that ended it, or "none". */
        String error() {
            return failure == null ? "none" : failure.getClass().getSimpleName();
        }

        @Override
        public void close() throws Exception {
            stopping = true;
            consumer.wakeup();
            thread.join(DEADLINE_MS);
        }
    }

    private static Map<String, Body> scenarios() {
        Map<String, Body> all = new LinkedHashMap<>();
        RecordScenarios.addTo(all);
        GroupScenarios.addTo(all);
        AdminScenarios.addTo(all);
        ConsumerGroupScenarios.addTo(all);
        TransactionScenarios.addTo(all);
        return all;
    }

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        prefix = args[1];
        Map<String, Body> all = scenarios();
        List<String> wanted = args.length > 2 ? Arrays.asList(args).subList(2, args.length) : new ArrayList<>(all.keySet());
        for (String name : wanted) {
            current = name;
            long start = System.nanoTime();
            try {
                all.get(name).run();
                fact("milliseconds", (System.nanoTime() - start) / 1_000_000);
            } catch (Throwable e) {
                java.io.StringWriter trace = new java.io.StringWriter();
                e.printStackTrace(new java.io.PrintWriter(trace));
                Map<String, Object> line = new HashMap<>();
                line.put("scenario", name);
                line.put("error", trace.toString());
                System.out.println(MAPPER.writeValueAsString(line));
                System.out.flush();
            }
        }
        System.exit(0);
    }
}

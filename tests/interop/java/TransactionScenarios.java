import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.TimeoutException;

/** Transactions with the Java producer, which is on transaction version 2. */
final class TransactionScenarios {
    private static final int MANY = 1000;
    private static final int COPIES = 600;
    private static final String[] COMMITTED = {"isolation.level", "read_committed"};

    private TransactionScenarios() { }

    static void addTo(Map<String, Scenarios.Body> all) {
        all.put("txn-commit-and-abort", TransactionScenarios::commitAndAbort);
        all.put("txn-open", TransactionScenarios::open);
        for (String protocol : List.of("classic", "consumer")) {
            all.put("txn-offsets-" + protocol, () -> offsets(protocol));
            all.put("txn-zombie-" + protocol, () -> zombie(protocol));
            all.put("txn-pending-" + protocol, () -> pending(protocol));
        }
        all.put("txn-fencing", TransactionScenarios::fencing);
        all.put("txn-timeout", TransactionScenarios::timeout);
        all.put("txn-misuse", TransactionScenarios::misuse);
        all.put("txn-wide", TransactionScenarios::wide);
        all.put("txn-many", TransactionScenarios::many);
        all.put("txn-admin", TransactionScenarios::admin);
        all.put("txn-copies", TransactionScenarios::copies);
    }

    static KafkaProducer<String, String> transactional(String id, String... settings) {
        List<String> all = new ArrayList<>(List.of("transactional.id", Scenarios.named(id), "max.block.ms", "20000"));
        all.addAll(List.of(settings));
        KafkaProducer<String, String> producer = Scenarios.producer(all.toArray(new String[0]));
        producer.initTransactions();
        return producer;
    }

    private static String[] with(String[] first, String... more) {
        List<String> all = new ArrayList<>(List.of(first));
        all.addAll(List.of(more));
        return all.toArray(new String[0]);
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int partition, String value) {
        producer.send(new ProducerRecord<>(topic, partition, "key", value));
    }

    /** Simple names of the error and of its cause, or "none". */
    static String errorOf(Callable<?> attempt) {
        try {
            attempt.call();
            return "none";
        } catch (Throwable e) {
            String cause = e.getCause() == null ? "" : " by " + e.getCause().getClass().getSimpleName();
            return e.getClass().getSimpleName() + cause;
        }
    }

    private static String errorOf(Runnable attempt) {
        return errorOf(() -> {
            attempt.run();
            return null;
        });
    }

    /** Values of all partitions, by an own position from the start; those that come within a while after `count`. */
    private static List<String> read(String topic, int partitions, int count, String... settings) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null, settings)) {
            consumer.assign(Scenarios.partitions(topic, partitions));
            List<ConsumerRecord<String, String>> found = Scenarios.pollUntil(consumer, count);
            found.addAll(Scenarios.pollFor(consumer, 300));
            for (ConsumerRecord<String, String> record : found) values.add(record.value());
        }
        return values;
    }

    private static Map<String, Long> ends(String topic, int partitions, String... settings) {
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(null, settings)) {
            return Scenarios.byNumber(consumer.endOffsets(Scenarios.partitions(topic, partitions)));
        }
    }

    private static void commitAndAbort() throws Exception {
        String topic = Scenarios.named("txn-mixed");
        Scenarios.createTopic(topic, 2);
        try (KafkaProducer<String, String> producer = transactional("mixed")) {
            for (int i = 0; i < 3; i++) {
                producer.beginTransaction();
                send(producer, topic, 0, "kept " + i);
                send(producer, topic, 1, "kept " + i);
                producer.commitTransaction();
                producer.beginTransaction();
                send(producer, topic, i % 2, "dropped " + i);
                producer.flush();
                producer.abortTransaction();
            }
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, 0, "last");
            producer.commitTransaction();
        }
        List<String> kept = read(topic, 2, 7, COMMITTED);
        Scenarios.fact("committed", kept.size() + " " + new TreeSet<>(kept));
        Scenarios.fact("uncommitted", read(topic, 2, 10).size());
        Scenarios.fact("ends", ends(topic, 2));
        Scenarios.fact("ends of what is committed", ends(topic, 2, COMMITTED));
    }

    private static void open() throws Exception {
        String topic = Scenarios.named("txn-open");
        Scenarios.createTopic(topic, 1);
        try (KafkaProducer<String, String> producer = transactional("open")) {
            producer.beginTransaction();
            send(producer, topic, 0, "in it");
            producer.flush();
            Scenarios.produce(topic, 1, 0, 1);
            Scenarios.fact("end while open", ends(topic, 1) + " " + ends(topic, 1, COMMITTED));
            Scenarios.fact("read while open", read(topic, 1, 0, COMMITTED));
            Scenarios.fact("read uncommitted while open", read(topic, 1, 2));
            producer.commitTransaction();
            Scenarios.fact("read afterwards", read(topic, 1, 2, COMMITTED));
        }
    }

    private static void offsets(String protocol) throws Exception {
        String source = Scenarios.named("txn-source-" + protocol);
        String target = Scenarios.named("txn-target-" + protocol);
        Scenarios.createTopic(source, 2);
        Scenarios.createTopic(target, 1);
        Scenarios.produce(source, 2, 0, 20);
        String[] settings = with(COMMITTED, "group.protocol", protocol, "max.poll.records", "3");
        int aborted = 0;
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(source, settings);
                KafkaProducer<String, String> producer = transactional(source)) {
            consumer.subscribe(List.of(source));
            for (int seen = 0, round = 0; seen < 20; ) {
                var records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) continue;
                boolean spoiled = round++ % 2 == 0;
                copy(consumer, producer, records, target, spoiled);
                if (spoiled) {
                    aborted++;
                    rewind(consumer);
                } else {
                    seen += records.count();
                }
            }
            Scenarios.fact("committed", positions(consumer.committed(Set.copyOf(Scenarios.partitions(source, 2)))));
        }
        List<String> copies = read(target, 1, 20, COMMITTED);
        Scenarios.fact("copies", copies.size() + " " + new TreeSet<>(copies).size());
        Scenarios.fact("some were aborted", aborted > 2);
    }

    private static Map<String, Long> positions(Map<TopicPartition, OffsetAndMetadata> committed) {
        Map<String, Long> found = new TreeMap<>();
        committed.forEach((partition, offset) -> found.put(String.valueOf(partition.partition()), offset == null ? -1 : offset.offset()));
        return found;
    }

    /** One transaction: a copy of each record, and the offsets after them. */
    private static void copy(KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer,
            org.apache.kafka.clients.consumer.ConsumerRecords<String, String> records, String target, boolean abort) {
        producer.beginTransaction();
        for (ConsumerRecord<String, String> record : records) send(producer, target, 0, "copy of " + record.value());
        producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
        if (abort) producer.abortTransaction();
        else producer.commitTransaction();
    }

    /** Back to the committed offsets, or the beginning. */
    private static void rewind(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(partition);
            if (offset == null) consumer.seekToBeginning(List.of(partition));
            else consumer.seek(partition, offset.offset());
        }
    }

    /** A producer that comes with a membership of yesterday. */
    private static void zombie(String protocol) throws Exception {
        String topic = Scenarios.named("txn-zombie-" + protocol);
        Scenarios.createTopic(topic, 2);
        Scenarios.produce(topic, 2, 0, 4);
        String[] settings = with(COMMITTED, "group.protocol", protocol);
        Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1));
        try (KafkaProducer<String, String> producer = transactional(topic);
                KafkaConsumer<String, String> old = Scenarios.consumer(topic, settings)) {
            old.subscribe(List.of(topic));
            Scenarios.pollUntil(old, 4);
            ConsumerGroupMetadata before = old.groupMetadata();
            producer.beginTransaction();
            send(producer, topic, 0, "of a member");
            producer.sendOffsetsToTransaction(offsets, before);
            producer.commitTransaction();
            try (Scenarios.Member other = new Scenarios.Member(topic, topic, settings)) {
                Scenarios.waitFor("two shares", () -> {
                    old.poll(Duration.ofMillis(50));
                    return old.assignment().size() == 1 && other.owns() == 1;
                });
                producer.beginTransaction();
                Scenarios.fact("an old generation", errorOf(() -> producer.sendOffsetsToTransaction(offsets, before)));
                String error = errorOf(producer::commitTransaction);
                Scenarios.fact("commit after it", error);
                if (!error.equals("none")) producer.abortTransaction();
                producer.beginTransaction();
                ConsumerGroupMetadata unknown = new ConsumerGroupMetadata(topic, before.generationId(), "nobody", java.util.Optional.empty());
                Scenarios.fact("an unknown member", errorOf(() -> producer.sendOffsetsToTransaction(offsets, unknown)));
                producer.abortTransaction();
                producer.beginTransaction();
                Scenarios.fact("without membership", errorOf(() -> producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(topic))));
                producer.abortTransaction();
                producer.beginTransaction();
                send(producer, topic, 0, "goes on");
                Scenarios.fact("the present one", errorOf(() -> producer.sendOffsetsToTransaction(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(2)), old.groupMetadata())));
                producer.commitTransaction();
            }
            // Not from `old`: that may still wait for an answer of before, which it would take for this one's.
            try (Admin admin = Scenarios.admin()) {
                TopicPartition first = new TopicPartition(topic, 0);
                ListConsumerGroupOffsetsOptions stable = new ListConsumerGroupOffsetsOptions().requireStable(true);
                Scenarios.fact("committed", positions(Map.of(first, Scenarios.get(admin.listConsumerGroupOffsets(topic, stable).partitionsToOffsetAndMetadata()).get(first))));
            }
        }
    }

    /** While offsets are pending, a reader of committed ones waits. */
    private static void pending(String protocol) throws Exception {
        String topic = Scenarios.named("txn-pending-" + protocol);
        Scenarios.createTopic(topic, 1);
        Scenarios.produce(topic, 1, 0, 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = transactional(topic);
                KafkaConsumer<String, String> stable = Scenarios.consumer(topic, with(COMMITTED, "group.protocol", protocol));
                Admin admin = Scenarios.admin()) {
            stable.subscribe(List.of(topic));
            Scenarios.pollUntil(stable, 1);
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1, "pending")), stable.groupMetadata());
            Scenarios.fact("while pending", errorOf(() -> stable.committed(Set.of(partition), Duration.ofMillis(700))));
            producer.commitTransaction();
            Scenarios.fact("afterwards", positions(stable.committed(Set.of(partition))));
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(77)), stable.groupMetadata());
            Scenarios.fact("plain while pending", positions(Scenarios.get(admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata())));
            producer.abortTransaction();
            Scenarios.fact("after an abort", positions(stable.committed(Set.of(partition))));
        }
    }

    private static void fencing() throws Exception {
        String topic = Scenarios.named("txn-fencing");
        Scenarios.createTopic(topic, 1);
        try (KafkaProducer<String, String> first = transactional("fencing")) {
            first.beginTransaction();
            send(first, topic, 0, "of the first");
            first.flush();
            try (KafkaProducer<String, String> second = transactional("fencing")) {
                Scenarios.fact("a commit of the first", errorOf(first::commitTransaction));
                Scenarios.fact("an abort of the first", errorOf(first::abortTransaction));
                Scenarios.fact("a begin of the first", errorOf(first::beginTransaction));
                second.beginTransaction();
                send(second, topic, 0, "of the second");
                second.commitTransaction();
            }
            try (KafkaProducer<String, String> idle = transactional("fencing");
                    KafkaProducer<String, String> third = transactional("fencing")) {
                idle.beginTransaction();
                var sent = idle.send(new ProducerRecord<>(topic, 0, "key", "of an idle one"));
                Scenarios.fact("a send when fenced", errorOf(() -> sent.get()));
                Scenarios.fact("a commit when fenced", errorOf(idle::commitTransaction));
            }
        }
        Scenarios.fact("read", read(topic, 1, 1, COMMITTED));
    }

    private static void timeout() throws Exception {
        String topic = Scenarios.named("txn-timeout");
        String id = Scenarios.named("timeout");
        Scenarios.createTopic(topic, 1);
        try (Admin admin = Scenarios.admin(); KafkaProducer<String, String> slow = transactional("timeout", "transaction.timeout.ms", "1000")) {
            slow.beginTransaction();
            send(slow, topic, 0, "too late");
            slow.flush();
            Scenarios.waitFor("the abort", () -> stateOf(admin, id) == TransactionState.COMPLETE_ABORT);
            Scenarios.fact("a late commit", errorOf(slow::commitTransaction));
            Scenarios.fact("a late abort", errorOf(slow::abortTransaction));
        }
        Scenarios.fact("read", read(topic, 1, 0, COMMITTED));
        Scenarios.fact("a timeout too large", errorOf(() -> transactional("too-large", "transaction.timeout.ms", "900001", "delivery.timeout.ms", "20000").close()));
    }

    private static TransactionState stateOf(Admin admin, String id) {
        try {
            return Scenarios.get(admin.describeTransactions(List.of(id)).all()).get(id).state();
        } catch (Exception e) {
            return TransactionState.UNKNOWN;
        }
    }

    private static void misuse() throws Exception {
        String topic = Scenarios.named("txn-misuse");
        Scenarios.createTopic(topic, 1, Map.of("max.message.bytes", "500"));
        try (KafkaProducer<String, String> producer = transactional("misuse")) {
            Scenarios.fact("no transaction", errorOf(() -> send(producer, topic, 0, "x")));
            producer.beginTransaction();
            send(producer, topic, 0, "good");
            producer.flush();
            var large = producer.send(new ProducerRecord<>(topic, 0, "key", "x".repeat(5000)));
            Scenarios.fact("a record too large", errorOf(() -> large.get()));
            // The client completes the future before it notes the failure: the commit is refused at once, or while it waits.
            Scenarios.fact("commit with it", errorOf(producer::commitTransaction).replace("KafkaException by ", ""));
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, 0, "better");
            producer.commitTransaction();
        }
        Scenarios.fact("read", read(topic, 1, 1, COMMITTED));
    }

    private static void wide() throws Exception {
        String topic = Scenarios.named("txn-wide");
        Scenarios.createTopic(topic, 60);
        try (KafkaProducer<String, String> producer = transactional("wide")) {
            for (int round = 0; round < 4; round++) {
                producer.beginTransaction();
                for (int i = 0; i < 300; i++) send(producer, topic, i % 60, "value " + round + " " + i);
                if (round % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        List<String> values = read(topic, 60, 600, COMMITTED);
        Scenarios.fact("read", values.size() + " " + new TreeSet<>(values).size());
    }

    private static void many() throws Exception {
        String topic = Scenarios.named("txn-many");
        Scenarios.createTopic(topic, 1);
        long took;
        try (KafkaProducer<String, String> producer = transactional("many")) {
            long start = System.nanoTime();
            for (int i = 0; i < MANY; i++) {
                producer.beginTransaction();
                send(producer, topic, 0, "value " + i);
                // Without this, the client may end a transaction before it sends its records: its sender looks for unsent
                // batches before it looks for EndTxn, and on a busy machine all of begin, send and commit come in between.
                producer.flush();
                if (i % 10 == 9) producer.abortTransaction();
                else producer.commitTransaction();
            }
            took = System.nanoTime() - start;
        }
        List<String> values = read(topic, 1, MANY * 9 / 10, COMMITTED);
        Scenarios.fact("read", values.size() + " " + new TreeSet<>(values).size());
        Scenarios.fact("transactions per second", MANY * 1_000_000_000L / took);
    }

    private static void admin() throws Exception {
        String topic = Scenarios.named("txn-admin");
        String id = Scenarios.named("admin");
        Scenarios.createTopic(topic, 1);
        try (Admin admin = Scenarios.admin(); KafkaProducer<String, String> producer = transactional("admin")) {
            Scenarios.fact("new", stateOf(admin, id));
            producer.beginTransaction();
            send(producer, topic, 0, "one");
            producer.flush();
            TransactionDescription found = Scenarios.get(admin.describeTransactions(List.of(id)).all()).get(id);
            Scenarios.fact("described", found.state() + " " + found.producerEpoch() + " " + found.transactionTimeoutMs() + " " + Scenarios.numbers(found.topicPartitions()));
            Scenarios.fact("has a start", found.transactionStartTimeMs().isPresent());
            Scenarios.fact("unknown", Scenarios.errorOf(admin.describeTransactions(List.of(Scenarios.named("nobody"))).all()));
            listings(admin, id, found.producerId());
            TopicPartition partition = new TopicPartition(topic, 0);
            ProducerState state = Scenarios.get(admin.describeProducers(List.of(partition)).all()).get(partition).activeProducers().get(0);
            Scenarios.fact("producers", state.producerEpoch() + " " + state.lastSequence() + " " + state.coordinatorEpoch().isPresent() + " " + state.currentTransactionStartOffset() + " " + (state.producerId() == found.producerId()));
            Scenarios.fact("fence", Scenarios.errorOf(admin.fenceProducers(List.of(id)).all()));
            Scenarios.fact("afterwards", stateOf(admin, id));
            Scenarios.fact("a commit when fenced", errorOf(producer::commitTransaction));
        }
        try (Admin admin = Scenarios.admin(); KafkaProducer<String, String> producer = transactional("terminate")) {
            producer.beginTransaction();
            send(producer, topic, 0, "two");
            producer.flush();
            Scenarios.fact("terminate", Scenarios.errorOf(admin.forceTerminateTransaction(Scenarios.named("terminate")).result()));
            Scenarios.fact("terminated", stateOf(admin, Scenarios.named("terminate")));
        }
        Scenarios.fact("read", read(topic, 1, 0, COMMITTED));
    }

    private static List<String> ids(Admin admin, ListTransactionsOptions options) throws Exception {
        TreeSet<String> found = new TreeSet<>();
        for (TransactionListing one : Scenarios.get(admin.listTransactions(options).all())) found.add(one.transactionalId() + " " + one.state());
        return new ArrayList<>(found);
    }

    private static void listings(Admin admin, String id, long producerId) throws Exception {
        Scenarios.fact("by producer", ids(admin, new ListTransactionsOptions().filterProducerIds(Set.of(producerId))));
        Scenarios.fact("by state", ids(admin, new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING))));
        Scenarios.fact("by pattern", ids(admin, new ListTransactionsOptions().filterOnTransactionalIdPattern(".*adm[i]n")));
        Scenarios.fact("by duration", ids(admin, new ListTransactionsOptions().filterProducerIds(Set.of(producerId)).filterOnDuration(3_600_000)));
    }

    /** Copies records while the server may be killed. Each copy is there once in the end. */
    private static void copies() throws Exception {
        String source = Scenarios.named("txn-copies-source");
        String target = Scenarios.named("txn-copies-target");
        Scenarios.createTopic(source, 2);
        Scenarios.createTopic(target, 1);
        Scenarios.produce(source, 2, 0, COPIES);
        String[] settings = with(COMMITTED, "max.poll.records", "3", "default.api.timeout.ms", "60000");
        int restarts = 0;
        KafkaProducer<String, String> producer = transactional("copies", "transaction.timeout.ms", "30000", "max.block.ms", "60000");
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(source, settings)) {
            consumer.subscribe(List.of(source));
            Scenarios.fact("started", true);
            for (int round = 0; sum(consumer, source) < COPIES; round++) {
                try {
                    var records = consumer.poll(Duration.ofMillis(100));
                    if (records.isEmpty()) continue;
                    boolean spoiled = round % 7 == 3;
                    copy(consumer, producer, records, target, spoiled);
                    if (spoiled) rewind(consumer);
                } catch (ApplicationRecoverableException | IllegalStateException | TimeoutException e) {
                    restarts++;
                    producer.close(Duration.ZERO);
                    producer = transactional("copies", "transaction.timeout.ms", "30000", "max.block.ms", "60000");
                    rewind(consumer);
                } catch (KafkaException e) {
                    restarts++;
                    try {
                        producer.abortTransaction();
                    } catch (KafkaException again) {
                        producer.close(Duration.ZERO);
                        producer = transactional("copies", "transaction.timeout.ms", "30000", "max.block.ms", "60000");
                    }
                    rewind(consumer);
                }
            }
        } finally {
            producer.close(Duration.ofSeconds(5));
        }
        List<String> values = read(target, 1, COPIES, COMMITTED);
        Scenarios.fact("copies", values.size() + " " + new TreeSet<>(values).size());
        Scenarios.fact("aborted by errors", restarts);
    }

    private static long sum(KafkaConsumer<String, String> consumer, String topic) {
        return consumer.committed(Set.copyOf(Scenarios.partitions(topic, 2))).values().stream().mapToLong(offset -> offset == null ? 0 : offset.offset()).sum();
    }
}

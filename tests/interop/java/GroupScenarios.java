import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicReference;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** Classic groups with the Java consumer. */
final class GroupScenarios {
    private static final String PACKAGE = "org.apache.kafka.clients.consumer.";

    private GroupScenarios() { }

    static void addTo(Map<String, Scenarios.Body> all) {
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")) {
            all.put("group-" + assignor, () -> comingAndGoing(assignor));
        }
        all.put("resume", GroupScenarios::resume);
        all.put("commits", GroupScenarios::commits);
        all.put("auto-commit", GroupScenarios::autoCommit);
        all.put("static-members", GroupScenarios::staticMembers);
        all.put("mixed-assignors", GroupScenarios::mixedAssignors);
        all.put("pattern", GroupScenarios::pattern);
        all.put("growing-topic", GroupScenarios::growingTopic);
        all.put("expired-member", GroupScenarios::expiredMember);
        all.put("standalone-commits", GroupScenarios::standaloneCommits);
    }

    /** One, two, three members and back: partitions are shared out evenly and every record is seen once. */
    private static void comingAndGoing(String assignor) throws Exception {
        String topic = Scenarios.named("group-" + assignor);
        String[] settings = {"partition.assignment.strategy", PACKAGE + assignor};
        Scenarios.createTopic(topic, 6);
        Scenarios.produce(topic, 6, 0, 60);
        Scenarios.Member a = new Scenarios.Member(topic, topic, settings);
        Scenarios.waitFor("A to own all", () -> a.owns() == 6);
        Scenarios.waitFor("A to read all", () -> a.seen() == 60);
        Scenarios.Member b = new Scenarios.Member(topic, topic, settings);
        Scenarios.waitFor("two shares", () -> a.owns() == 3 && b.owns() == 3);
        Scenarios.Member c = new Scenarios.Member(topic, topic, settings);
        Scenarios.waitFor("three shares", () -> a.owns() == 2 && b.owns() == 2 && c.owns() == 2);
        Scenarios.produce(topic, 6, 60, 60);
        Scenarios.waitFor("the second half", () -> a.seen() + b.seen() + c.seen() >= 120);
        Set<String> values = new TreeSet<>(a.values);
        values.addAll(b.values);
        values.addAll(c.values);
        Scenarios.fact("distinct values", values.size());
        Scenarios.fact("values", a.seen() + b.seen() + c.seen());
        a.close();
        Scenarios.waitFor("two shares again", () -> b.owns() == 3 && c.owns() == 3);
        c.close();
        Scenarios.waitFor("one share again", () -> b.owns() == 6);
        b.close();
        boolean everythingRevoked = b.events().stream().anyMatch(event -> event.equals("revoked [0, 1, 2, 3, 4, 5]"));
        Scenarios.fact("events of B", b.events().size() > 2);
        Scenarios.fact("B gave all up at once only at its end", everythingRevoked && b.events().indexOf("revoked [0, 1, 2, 3, 4, 5]") == b.events().size() - 1);
    }

    private static void resume() throws Exception {
        String topic = Scenarios.named("resume");
        Scenarios.createTopic(topic, 2);
        Scenarios.produce(topic, 2, 0, 30);
        List<String> first = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic, "max.poll.records", "5")) {
            consumer.subscribe(List.of(topic));
            while (first.size() < 15) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) first.add(record.value());
                consumer.commitSync();
            }
        }
        Scenarios.produce(topic, 2, 30, 10);
        List<String> second = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic)) {
            consumer.subscribe(List.of(topic));
            for (ConsumerRecord<String, String> record : Scenarios.pollUntil(consumer, 40 - first.size())) second.add(record.value());
            second.addAll(Scenarios.pollFor(consumer, 300).stream().map(ConsumerRecord::value).toList());
        }
        Set<String> all = new TreeSet<>(first);
        all.addAll(second);
        Scenarios.fact("distinct", all.size());
        Scenarios.fact("received", first.size() + second.size());
    }

    private static void commits() throws Exception {
        String topic = Scenarios.named("commits");
        Scenarios.createTopic(topic, 2);
        Scenarios.produce(topic, 2, 0, 20);
        TopicPartition p0 = new TopicPartition(topic, 0);
        TopicPartition p1 = new TopicPartition(topic, 1);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic)) {
            consumer.subscribe(List.of(topic));
            Scenarios.pollUntil(consumer, 20);
            Scenarios.fact("nothing committed", consumer.committed(Set.of(p0, p1)).get(p0) == null);
            consumer.commitSync(Map.of(p0, new OffsetAndMetadata(3, "by hand")));
            OffsetAndMetadata stored = consumer.committed(Set.of(p0, p1)).get(p0);
            Scenarios.fact("committed by hand", stored.offset() + " " + stored.metadata());
            AtomicReference<String> outcome = new AtomicReference<>();
            consumer.commitAsync((offsets, error) -> outcome.set(error == null ? "done " + new TreeSet<>(offsets.values().stream().map(OffsetAndMetadata::offset).toList()) : String.valueOf(error)));
            Scenarios.waitFor("the callback", () -> {
                consumer.poll(Duration.ofMillis(20));
                return outcome.get() != null;
            });
            Scenarios.fact("asynchronous commit", outcome.get());
            OffsetAndMetadata after = consumer.committed(Set.of(p1)).get(p1);
            Scenarios.fact("leader epoch stored", after.leaderEpoch().isPresent());
            try {
                consumer.commitSync(Map.of(p0, new OffsetAndMetadata(1, "x".repeat(5000))));
                Scenarios.fact("metadata too large", "none");
            } catch (RuntimeException e) {
                Scenarios.fact("metadata too large", e.getClass().getSimpleName());
            }
            ConsumerGroupMetadata who = consumer.groupMetadata();
            Scenarios.fact("generation", who.generationId());
            consumer.enforceRebalance("because the test says so");
            Scenarios.waitFor("a new generation", () -> {
                consumer.poll(Duration.ofMillis(20));
                return consumer.groupMetadata().generationId() > who.generationId();
            });
            Scenarios.fact("same member id", consumer.groupMetadata().memberId().equals(who.memberId()));
        }
    }

    private static void autoCommit() throws Exception {
        String topic = Scenarios.named("auto-commit");
        Scenarios.createTopic(topic, 1);
        Scenarios.produce(topic, 1, 0, 10);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic, "enable.auto.commit", "true", "auto.commit.interval.ms", "100")) {
            consumer.subscribe(List.of(topic));
            Scenarios.pollUntil(consumer, 10);
            TopicPartition only = new TopicPartition(topic, 0);
            Scenarios.waitFor("the automatic commit", () -> {
                consumer.poll(Duration.ofMillis(50));
                OffsetAndMetadata stored = consumer.committed(Set.of(only)).get(only);
                return stored != null && stored.offset() == 10;
            });
        }
        Scenarios.fact("committed", 10);
    }

    /** A static member that stops and comes back within its session keeps its share; its neighbour notices nothing. */
    private static void staticMembers() throws Exception {
        String topic = Scenarios.named("static");
        Scenarios.createTopic(topic, 4);
        Scenarios.Member a = new Scenarios.Member(topic, topic, "group.instance.id", "a");
        Scenarios.waitFor("A to own all", () -> a.owns() == 4);
        Scenarios.Member b = new Scenarios.Member(topic, topic, "group.instance.id", "b");
        Scenarios.waitFor("two shares", () -> a.owns() == 2 && b.owns() == 2);
        List<Integer> share = b.owned();
        int events = a.events().size();
        b.close();
        Scenarios.Member again = new Scenarios.Member(topic, topic, "group.instance.id", "b");
        Scenarios.waitFor("B's share back", () -> again.owns() == 2);
        Scenarios.fact("same share", again.owned().equals(share));
        Scenarios.fact("events at the neighbour", a.events().size() - events);
        Scenarios.Member thief = new Scenarios.Member(topic, topic, "group.instance.id", "b");
        Scenarios.waitFor("the second holder of the id", () -> thief.owns() == 2);
        try {
            Scenarios.waitFor("the first holder to fail", () -> again.owns() < 0);
        } catch (IllegalStateException e) {
            Scenarios.fact("the first holder's error", e.getCause() == null ? "none" : e.getCause().getClass().getSimpleName());
        }
        thief.close();
        again.close();
        a.close();
    }

    /** Members that share one of two assignors agree on it. */
    private static void mixedAssignors() throws Exception {
        String topic = Scenarios.named("mixed");
        Scenarios.createTopic(topic, 4);
        String both = PACKAGE + "CooperativeStickyAssignor," + PACKAGE + "RangeAssignor";
        Scenarios.Member a = new Scenarios.Member(topic, topic, "partition.assignment.strategy", both);
        Scenarios.waitFor("A to own all", () -> a.owns() == 4);
        Scenarios.Member b = new Scenarios.Member(topic, topic, "partition.assignment.strategy", PACKAGE + "RangeAssignor");
        Scenarios.waitFor("two shares", () -> a.owns() == 2 && b.owns() == 2);
        try (KafkaConsumer<String, String> stranger = Scenarios.consumer(topic, "partition.assignment.strategy", PACKAGE + "RoundRobinAssignor")) {
            stranger.subscribe(List.of(topic));
            try {
                Scenarios.pollFor(stranger, 3000);
                Scenarios.fact("no common assignor", "none");
            } catch (RuntimeException e) {
                Scenarios.fact("no common assignor", e.getClass().getSimpleName());
            }
        }
        Scenarios.fact("shares", List.of(a.owns(), b.owns()));
        b.close();
        a.close();
    }

    private static void pattern() throws Exception {
        String stem = Scenarios.named("pattern");
        Scenarios.createTopic(stem + "-one", 1);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(stem)) {
            consumer.subscribe(Pattern.compile(Pattern.quote(stem) + "-.*"));
            Scenarios.waitFor("the first topic", () -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size() == 1;
            });
            Scenarios.createTopic(stem + "-two", 2);
            Scenarios.waitFor("the second topic", () -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size() == 3;
            });
            Scenarios.fact("topics", new TreeSet<>(consumer.assignment().stream().map(p -> p.topic().substring(stem.length())).toList()));
        }
    }

    private static void growingTopic() throws Exception {
        String topic = Scenarios.named("growing");
        Scenarios.createTopic(topic, 1);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic); var admin = Scenarios.admin()) {
            consumer.subscribe(List.of(topic));
            Scenarios.waitFor("one partition", () -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size() == 1;
            });
            Scenarios.get(admin.createPartitions(Map.of(topic, org.apache.kafka.clients.admin.NewPartitions.increaseTo(3))).all());
            Scenarios.waitFor("three partitions", () -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size() == 3;
            });
            Scenarios.fact("partitions", consumer.assignment().size());
        }
    }

    /** A member that stops polling is put out by its client; one whose session ends is put out by the coordinator. */
    private static void expiredMember() throws Exception {
        String topic = Scenarios.named("expired");
        Scenarios.createTopic(topic, 2);
        Scenarios.produce(topic, 2, 0, 2);
        Scenarios.Member a = new Scenarios.Member(topic, topic);
        Scenarios.waitFor("A to own all", () -> a.owns() == 2);
        KafkaConsumer<String, String> slow = Scenarios.consumer(topic, "max.poll.interval.ms", "1500", "session.timeout.ms", "6000");
        slow.subscribe(List.of(topic));
        Scenarios.waitFor("two shares", () -> {
            slow.poll(Duration.ofMillis(50));
            return a.owns() == 1 && slow.assignment().size() == 1;
        });
        Scenarios.waitFor("A to own all again", () -> a.owns() == 2);
        Map<TopicPartition, OffsetAndMetadata> late = new HashMap<>();
        for (TopicPartition partition : slow.assignment()) late.put(partition, new OffsetAndMetadata(1));
        try {
            slow.commitSync(late);
            Scenarios.fact("a late commit", "none");
        } catch (RuntimeException e) {
            Scenarios.fact("a late commit", e.getClass().getSimpleName());
        }
        slow.close();
        a.close();
    }

    private static void standaloneCommits() throws Exception {
        String topic = Scenarios.named("standalone");
        Scenarios.createTopic(topic, 1);
        TopicPartition only = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic)) {
            consumer.assign(List.of(only));
            consumer.commitSync(Collections.singletonMap(only, new OffsetAndMetadata(42, "standalone")));
            OffsetAndMetadata stored = consumer.committed(Set.of(only)).get(only);
            Scenarios.fact("committed", stored.offset() + " " + stored.metadata());
        }
    }
}

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Consumer groups (KIP-848) with the Java consumer and the Java admin client. */
final class ConsumerGroupScenarios {
    private ConsumerGroupScenarios() { }

    static void addTo(Map<String, Scenarios.Body> all) {
        all.put("consumer-uniform", () -> comingAndGoing("uniform"));
        all.put("consumer-range", () -> comingAndGoing("range"));
        all.put("consumer-assignor", ConsumerGroupScenarios::assignor);
        all.put("consumer-pattern", ConsumerGroupScenarios::pattern);
        all.put("consumer-growing-topic", ConsumerGroupScenarios::growingTopic);
        all.put("consumer-static", ConsumerGroupScenarios::staticMembers);
        all.put("consumer-close", ConsumerGroupScenarios::close);
        all.put("consumer-expired", ConsumerGroupScenarios::expired);
        all.put("consumer-commits", ConsumerGroupScenarios::commits);
        all.put("consumer-admin", ConsumerGroupScenarios::admin);
        all.put("consumer-mixed", ConsumerGroupScenarios::mixed);
    }

    private static Scenarios.Member member(String group, String topic, String... settings) {
        return new Scenarios.Member(group, topic, with(settings));
    }

    private static String[] with(String... settings) {
        List<String> all = new ArrayList<>(List.of("group.protocol", "consumer"));
        all.addAll(List.of(settings));
        return all.toArray(new String[0]);
    }

    private static ConsumerGroupDescription described(Admin admin, String group) throws Exception {
        return Scenarios.get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    private static void waitStable(Admin admin, String group) throws Exception {
        Scenarios.waitFor("a stable group", () -> {
            try {
                return described(admin, group).groupState().toString().equals("Stable");
            } catch (Exception e) {
                return false;
            }
        });
    }

    /** One, two, three members and back: partitions are shared out evenly, and only what has to go is given up. */
    private static void comingAndGoing(String assignor) throws Exception {
        String topic = Scenarios.named("consumer-" + assignor);
        String[] settings = {"group.remote.assignor", assignor};
        Scenarios.createTopic(topic, 6);
        Scenarios.produce(topic, 6, 0, 60);
        Scenarios.Member a = member(topic, topic, settings);
        Scenarios.waitFor("A to own all", () -> a.owns() == 6);
        Scenarios.waitFor("A to read all", () -> a.seen() == 60);
        Scenarios.Member b = member(topic, topic, settings);
        Scenarios.waitFor("two shares", () -> a.owns() == 3 && b.owns() == 3);
        Scenarios.Member c = member(topic, topic, settings);
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
        Scenarios.fact("B gave all up at once only at its end", b.events().indexOf("revoked [0, 1, 2, 3, 4, 5]") == b.events().size() - 1);
        try (Admin admin = Scenarios.admin()) {
            Scenarios.fact("afterwards", described(admin, topic).groupState() + " " + described(admin, topic).partitionAssignor());
        }
    }

    private static void assignor() throws Exception {
        String topic = Scenarios.named("consumer-assignor");
        Scenarios.createTopic(topic, 2);
        Scenarios.Member a = member(topic, topic, "group.remote.assignor", "dice");
        Scenarios.waitFor("an error", () -> !a.error().equals("none"));
        Scenarios.fact("an unknown assignor", a.error());
        a.close();
        // More members ask for range than for the other.
        List<Scenarios.Member> members = new ArrayList<>();
        for (String name : List.of("uniform", "range", "range")) members.add(member(topic, topic, "group.remote.assignor", name));
        try (Admin admin = Scenarios.admin()) {
            Scenarios.waitFor("three members", () -> {
                try {
                    return described(admin, topic).members().size() == 3;
                } catch (Exception e) {
                    return false;
                }
            });
            waitStable(admin, topic);
            Scenarios.fact("the preferred one", described(admin, topic).partitionAssignor());
        }
        for (Scenarios.Member one : members) one.close();
    }

    private static void pattern() throws Exception {
        String stem = Scenarios.named("consumer-pattern");
        Scenarios.createTopic(stem + "-one", 1);
        Scenarios.createTopic("not-" + stem + "-one", 1);
        Scenarios.Member a = new Scenarios.Member(stem, new SubscriptionPattern(stem + "-.*"), with());
        Scenarios.waitFor("the first topic", () -> a.owns() == 1);
        Scenarios.createTopic(stem + "-two", 2);
        Scenarios.waitFor("the second topic", () -> a.owns() == 3);
        Scenarios.fact("topics", new TreeSet<>(a.owned()));
        a.close();
        Scenarios.Member b = new Scenarios.Member(stem, new SubscriptionPattern("("), with());
        Scenarios.waitFor("an error", () -> !b.error().equals("none"));
        Scenarios.fact("a bad expression", b.error());
        b.close();
    }

    private static void growingTopic() throws Exception {
        String topic = Scenarios.named("consumer-growing");
        Scenarios.createTopic(topic, 1);
        Scenarios.Member a = member(topic, topic);
        Scenarios.waitFor("one partition", () -> a.owns() == 1);
        try (Admin admin = Scenarios.admin()) {
            Scenarios.get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
            Scenarios.waitFor("three partitions", () -> a.owns() == 3);
            Scenarios.get(admin.deleteTopics(List.of(topic)).all());
            Scenarios.waitFor("none", () -> a.owns() == 0);
        }
        Scenarios.fact("given up at once", a.events().contains("revoked [0, 1, 2]"));
        a.close();
    }

    private static void staticMembers() throws Exception {
        String topic = Scenarios.named("consumer-static");
        Scenarios.createTopic(topic, 4);
        Scenarios.Member a = member(topic, topic, "group.instance.id", "a");
        Scenarios.waitFor("A to own all", () -> a.owns() == 4);
        Scenarios.Member b = member(topic, topic, "group.instance.id", "b");
        Scenarios.waitFor("two shares", () -> a.owns() == 2 && b.owns() == 2);
        List<Integer> share = b.owned();
        int events = a.events().size();
        b.close();
        Scenarios.Member again = member(topic, topic, "group.instance.id", "b");
        Scenarios.waitFor("B's share back", () -> again.owns() == 2);
        Scenarios.fact("same share", again.owned().equals(share));
        Scenarios.fact("events at the neighbour", a.events().size() - events);
        Scenarios.Member second = member(topic, topic, "group.instance.id", "b");
        Scenarios.waitFor("the second holder of the id to fail", () -> !second.error().equals("none"));
        Scenarios.fact("the second holder's error", second.error());
        Scenarios.fact("the first holder's error", again.error());
        second.close();
        again.close(GroupMembershipOperation.LEAVE_GROUP);
        Scenarios.waitFor("A to own all again", () -> a.owns() == 4);
        a.close(GroupMembershipOperation.LEAVE_GROUP);
    }

    /** Who is still there after a close, by the kind of member and what it asked for: "instance or ? epoch" */
    private static void close() throws Exception {
        String topic = Scenarios.named("consumer-close");
        Scenarios.createTopic(topic, 2);
        Map<String, String> left = new TreeMap<>();
        try (Admin admin = Scenarios.admin()) {
            for (String instance : List.of("", "static")) {
                for (GroupMembershipOperation operation : GroupMembershipOperation.values()) {
                    String group = topic + "-" + instance + "-" + operation;
                    Scenarios.Member one = instance.isEmpty() ? member(group, topic) : member(group, topic, "group.instance.id", instance);
                    Scenarios.waitFor("all partitions", () -> one.owns() == 2);
                    one.close(operation);
                    List<String> members = new ArrayList<>();
                    for (MemberDescription member : described(admin, group).members()) members.add(member.groupInstanceId().orElse("?") + " " + member.memberEpoch().get());
                    left.put(instance + " " + operation, members.toString());
                }
            }
        }
        Scenarios.fact("left", left);
    }

    /** A member that does not poll leaves by itself, and comes back when it polls; a static one that is away is missed. */
    private static void expired() throws Exception {
        String topic = Scenarios.named("consumer-expired");
        Scenarios.createTopic(topic, 2);
        try (Admin admin = Scenarios.admin()) {
            ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, topic);
            var change = new AlterConfigOp(new ConfigEntry("consumer.session.timeout.ms", "1500"), AlterConfigOp.OpType.SET);
            Scenarios.get(admin.incrementalAlterConfigs(Map.of(group, List.of(change))).all());
        }
        Scenarios.Member a = member(topic, topic);
        Scenarios.waitFor("A to own all", () -> a.owns() == 2);
        Scenarios.Member b = member(topic, topic, "group.instance.id", "b");
        Scenarios.waitFor("two shares", () -> a.owns() == 1 && b.owns() == 1);
        long closed = System.nanoTime();
        b.close(GroupMembershipOperation.REMAIN_IN_GROUP);
        Scenarios.waitFor("A to own all again", () -> a.owns() == 2);
        Scenarios.fact("after the group's own session timeout", (System.nanoTime() - closed) / 1_000_000 > 1000);
        KafkaConsumer<String, String> slow = Scenarios.consumer(topic, with("max.poll.interval.ms", "1000"));
        slow.subscribe(List.of(topic));
        Scenarios.waitFor("two shares again", () -> {
            slow.poll(Duration.ofMillis(50));
            return a.owns() == 1 && slow.assignment().size() == 1;
        });
        TopicPartition share = slow.assignment().iterator().next();
        Scenarios.waitFor("A to own all for a third time", () -> a.owns() == 2);
        try {
            slow.commitSync(Map.of(share, new OffsetAndMetadata(1)));
            Scenarios.fact("a late commit", "none");
        } catch (RuntimeException e) {
            Scenarios.fact("a late commit", e.getClass().getSimpleName());
        }
        Scenarios.waitFor("a share for the one that polls again", () -> {
            slow.poll(Duration.ofMillis(50));
            return a.owns() == 1 && slow.assignment().size() == 1;
        });
        slow.close();
        a.close();
    }

    private static void commits() throws Exception {
        String topic = Scenarios.named("consumer-commits");
        Scenarios.createTopic(topic, 1);
        Scenarios.produce(topic, 1, 0, 20);
        TopicPartition only = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic, with("max.poll.records", "5"))) {
            consumer.subscribe(List.of(topic));
            Scenarios.fact("first", Scenarios.pollUntil(consumer, 5).size());
            consumer.commitSync();
            Scenarios.fact("committed", consumer.committed(Set.of(only)).get(only).offset());
            Scenarios.fact("generation is the member epoch", consumer.groupMetadata().generationId() > 0);
        }
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic, with("enable.auto.commit", "true"))) {
            consumer.subscribe(List.of(topic));
            Scenarios.fact("the rest begins with", Scenarios.pollUntil(consumer, 15).get(0).value());
        }
        try (KafkaConsumer<String, String> consumer = Scenarios.consumer(topic, with())) {
            Scenarios.fact("committed at close", consumer.committed(Set.of(only)).get(only).offset());
        }
    }

    private static Map<String, String> listed(Admin admin, String stem, ListGroupsOptions options) throws Exception {
        Map<String, String> found = new TreeMap<>();
        for (GroupListing one : Scenarios.get(admin.listGroups(options).all())) {
            if (!one.groupId().startsWith(stem)) continue;
            String state = one.groupState().map(Object::toString).orElse("?");
            found.put(one.groupId().substring(stem.length()), state + " " + one.type().map(Object::toString).orElse("?") + " " + one.protocol());
        }
        return found;
    }

    /** A description without what differs from run to run. */
    private static List<String> inWords(ConsumerGroupDescription group) {
        List<String> all = new ArrayList<>();
        all.add(group.groupState() + " " + group.type() + " " + group.partitionAssignor() + " " + group.isSimpleConsumerGroup()
            + " epochs " + (group.groupEpoch().isPresent() && group.groupEpoch().equals(group.targetAssignmentEpoch())));
        TreeSet<String> members = new TreeSet<>();
        for (MemberDescription one : group.members()) {
            String target = one.targetAssignment().map(found -> String.valueOf(found.topicPartitions().equals(one.assignment().topicPartitions()))).orElse("?");
            members.add(one.clientId() + " " + one.groupInstanceId().orElse("?") + " " + one.rackId().orElse("?") + " " + one.host() + " "
                + one.assignment().topicPartitions().size() + " target " + target + " at group's epoch " + one.memberEpoch().equals(group.groupEpoch()) + " upgraded " + one.upgraded().map(Object::toString).orElse("?"));
        }
        all.addAll(members);
        return all;
    }

    private static void admin() throws Exception {
        String stem = Scenarios.named("consumer-admin");
        String topic = stem + "-running";
        Scenarios.createTopic(topic, 4);
        TopicPartition p0 = new TopicPartition(topic, 0);
        Scenarios.Member a = member(topic, topic, "client.id", "client-a", "group.instance.id", "instance-a", "client.rack", "rack-a");
        Scenarios.Member b = member(topic, topic, "client.id", "client-b");
        Scenarios.waitFor("two shares", () -> a.owns() == 2 && b.owns() == 2);
        Scenarios.Member classic = new Scenarios.Member(stem + "-classic", topic, "client.id", "client-c");
        Scenarios.waitFor("all", () -> classic.owns() == 4);
        try (Admin admin = Scenarios.admin()) {
            waitStable(admin, topic);
            Scenarios.fact("listed", listed(admin, stem, new ListGroupsOptions()));
            Scenarios.fact("of the type", listed(admin, stem, new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))));
            Scenarios.fact("for consumers", listed(admin, stem, ListGroupsOptions.forConsumerGroups()));
            Scenarios.fact("described", inWords(described(admin, topic)));
            var both = Scenarios.get(admin.describeConsumerGroups(List.of(topic, stem + "-classic")).all());
            Scenarios.fact("both kinds", both.get(topic).type() + " " + both.get(stem + "-classic").type());
            Scenarios.fact("described as classic", Scenarios.errorOf(admin.describeClassicGroups(List.of(topic)).all()));
            Scenarios.fact("delete", Scenarios.errorOf(admin.deleteConsumerGroups(List.of(topic)).all()));
            Scenarios.fact("alter offsets", Scenarios.errorOf(admin.alterConsumerGroupOffsets(topic, Map.of(p0, new OffsetAndMetadata(1))).all()));
            Scenarios.fact("delete offsets", Scenarios.errorOf(admin.deleteConsumerGroupOffsets(topic, Set.of(p0)).all()));
            var one = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("instance-a")));
            Scenarios.fact("remove a static member", Scenarios.errorOf(admin.removeMembersFromConsumerGroup(topic, one).all()));
            Scenarios.waitFor("the removed one to notice", () -> a.events().stream().anyMatch(event -> event.startsWith("lost")) || !a.error().equals("none"));
            Scenarios.fact("the removed one", a.error());
            a.close(GroupMembershipOperation.LEAVE_GROUP);
            b.close();
            classic.close();
            Scenarios.fact("empty", inWords(described(admin, topic)));
            Scenarios.fact("alter offsets of an empty group", Scenarios.errorOf(admin.alterConsumerGroupOffsets(topic, Map.of(p0, new OffsetAndMetadata(1))).all()));
            Scenarios.fact("delete an empty group", Scenarios.errorOf(admin.deleteConsumerGroups(List.of(topic)).all()));
            Scenarios.fact("in the end", listed(admin, stem, new ListGroupsOptions()));
        }
    }

    /** A classic member in a consumer group. */
    private static void mixed() throws Exception {
        String topic = Scenarios.named("consumer-mixed");
        Scenarios.createTopic(topic, 4);
        Scenarios.Member classic = new Scenarios.Member(topic, topic, "client.id", "old");
        Scenarios.waitFor("all", () -> classic.owns() == 4);
        Scenarios.Member consumer = member(topic, topic, "client.id", "new");
        Scenarios.waitFor("two shares", () -> classic.owns() == 2 && consumer.owns() == 2);
        try (Admin admin = Scenarios.admin()) {
            waitStable(admin, topic);
            Scenarios.fact("mixed", inWords(described(admin, topic)));
            consumer.close();
            Scenarios.waitFor("all again", () -> classic.owns() == 4);
            Scenarios.fact("downgraded", described(admin, topic).type() + " " + described(admin, topic).groupState());
            classic.close();
            // An empty group has no type of its own.
            Scenarios.Member last = member(topic, topic);
            Scenarios.waitFor("all once more", () -> last.owns() == 4);
            Scenarios.fact("after an empty one", described(admin, topic).type().toString());
            last.close();
        }
    }
}

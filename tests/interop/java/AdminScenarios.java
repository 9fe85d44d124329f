import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupsOptions;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;

/** The Java admin client. */
final class AdminScenarios {
    private AdminScenarios() { }

    static void addTo(Map<String, Scenarios.Body> all) {
        all.put("cluster", AdminScenarios::cluster);
        all.put("topics", AdminScenarios::topics);
        all.put("configs", AdminScenarios::configs);
        all.put("records", AdminScenarios::records);
        all.put("groups", AdminScenarios::groups);
        all.put("group-offsets", AdminScenarios::groupOffsets);
        all.put("remove-members", AdminScenarios::removeMembers);
    }

    private static void cluster() throws Exception {
        try (Admin admin = Scenarios.admin()) {
            var described = admin.describeCluster();
            Scenarios.fact("nodes", Scenarios.get(described.nodes()).size());
            Scenarios.fact("has a controller", Scenarios.get(described.controller()) != null);
            Scenarios.fact("has a cluster id", !Scenarios.get(described.clusterId()).isEmpty());
            Scenarios.fact("bootstrap is the node", Scenarios.get(described.nodes()).iterator().next().port() == Integer.parseInt(Scenarios.bootstrap.split(":")[1]));
        }
    }

    private static void topics() throws Exception {
        String name = Scenarios.named("topics");
        try (Admin admin = Scenarios.admin()) {
            CreateTopicsResult made = admin.createTopics(List.of(new NewTopic(name, 3, (short) 1).configs(Map.of("retention.ms", "123456"))));
            Scenarios.fact("create", Scenarios.errorOf(made.all()));
            Scenarios.fact("created partitions", Scenarios.get(made.numPartitions(name)));
            Uuid id = Scenarios.get(made.topicId(name));
            Scenarios.fact("config in the answer", Scenarios.get(made.config(name)).get("retention.ms").value());
            Scenarios.waitFor("the new topic", () -> Scenarios.described(admin, name) == 3);
            Scenarios.fact("create again", Scenarios.errorOf(admin.createTopics(List.of(new NewTopic(name, 3, (short) 1))).all()));
            Scenarios.fact("create a bad name", Scenarios.errorOf(admin.createTopics(List.of(new NewTopic("a b", 3, (short) 1))).all()));
            Scenarios.fact("create with 0 partitions", Scenarios.errorOf(admin.createTopics(List.of(new NewTopic(name + "-0", 0, (short) 1))).all()));
            Scenarios.fact("create with replication 3", Scenarios.errorOf(admin.createTopics(List.of(new NewTopic(name + "-3", 1, (short) 3))).all()));
            Scenarios.fact("create with a bad config", Scenarios.errorOf(admin.createTopics(List.of(new NewTopic(name + "-c", 1, (short) 1).configs(Map.of("no.such.key", "1")))).all()));
            Scenarios.fact("listed", Scenarios.get(admin.listTopics().names()).contains(name));
            TopicDescription described = Scenarios.get(admin.describeTopics(List.of(name)).allTopicNames()).get(name);
            Scenarios.fact("described partitions", described.partitions().size());
            Scenarios.fact("described replicas", described.partitions().get(0).replicas().size() + " " + described.partitions().get(0).isr().size());
            Scenarios.fact("same id", described.topicId().equals(id));
            TopicDescription byId = Scenarios.get(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id);
            Scenarios.fact("described by id", byId.name().equals(name));
            Scenarios.fact("describe unknown", Scenarios.errorOf(admin.describeTopics(List.of(name + "-nowhere")).allTopicNames()));
            Scenarios.fact("describe unknown id", Scenarios.errorOf(admin.describeTopics(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).allTopicIds()));
            Scenarios.fact("more partitions", Scenarios.errorOf(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(5))).all()));
            Scenarios.fact("fewer partitions", Scenarios.errorOf(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(2))).all()));
            Scenarios.fact("partitions of unknown", Scenarios.errorOf(admin.createPartitions(Map.of(name + "-nowhere", NewPartitions.increaseTo(2))).all()));
            Scenarios.waitFor("5 partitions", () -> Scenarios.described(admin, name) == 5);
            Scenarios.fact("delete", Scenarios.errorOf(admin.deleteTopics(List.of(name)).all()));
            Scenarios.fact("delete again", Scenarios.errorOf(admin.deleteTopics(List.of(name)).all()));
            Scenarios.waitFor("the topic to be gone", () -> Scenarios.described(admin, name) == 0);
            Scenarios.createTopic(name, 1);
            Uuid second = Scenarios.get(admin.describeTopics(List.of(name)).allTopicNames()).get(name).topicId();
            Scenarios.fact("another id after recreation", !second.equals(id));
            Scenarios.fact("delete by old id", Scenarios.errorOf(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()));
            Scenarios.fact("delete by id", Scenarios.errorOf(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(second))).all()));
        }
    }

    private static void configs() throws Exception {
        String name = Scenarios.named("configs");
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
        try (Admin admin = Scenarios.admin()) {
            Scenarios.createTopic(name, 1, Map.of("retention.ms", "1000"));
            Config before = Scenarios.get(admin.describeConfigs(List.of(topic)).all()).get(topic);
            Scenarios.fact("retention.ms", before.get("retention.ms").value() + " " + before.get("retention.ms").source());
            Scenarios.fact("cleanup.policy", before.get("cleanup.policy").value() + " " + before.get("cleanup.policy").source());
            Collection<AlterConfigOp> changes = List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "2000"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND));
            Scenarios.fact("alter", Scenarios.errorOf(admin.incrementalAlterConfigs(Map.of(topic, changes)).all()));
            Config after = Scenarios.get(admin.describeConfigs(List.of(topic)).all()).get(topic);
            Scenarios.fact("retention.ms after", after.get("retention.ms").value());
            Scenarios.fact("cleanup.policy after", new TreeSet<>(List.of(after.get("cleanup.policy").value().split(","))));
            Collection<AlterConfigOp> undo = List.of(new AlterConfigOp(new ConfigEntry("retention.ms", null), AlterConfigOp.OpType.DELETE));
            Scenarios.fact("delete a key", Scenarios.errorOf(admin.incrementalAlterConfigs(Map.of(topic, undo)).all()));
            Scenarios.fact("retention.ms in the end", Scenarios.get(admin.describeConfigs(List.of(topic)).all()).get(topic).get("retention.ms").value());
            Collection<AlterConfigOp> bad = List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET));
            Scenarios.fact("a bad value", Scenarios.errorOf(admin.incrementalAlterConfigs(Map.of(topic, bad)).all()));
            ConfigResource unknown = new ConfigResource(ConfigResource.Type.TOPIC, name + "-nowhere");
            Scenarios.fact("an unknown topic", Scenarios.errorOf(admin.describeConfigs(List.of(unknown)).all()));
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(Scenarios.get(admin.describeCluster().nodes()).iterator().next().id()));
            Scenarios.fact("the broker has configs", Scenarios.get(admin.describeConfigs(List.of(broker)).all()).get(broker).entries().size() > 5);
            TreeSet<String> listed = new TreeSet<>();
            Scenarios.get(admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new org.apache.kafka.clients.admin.ListConfigResourcesOptions()).all()).forEach(resource -> listed.add(resource.name()));
            Scenarios.fact("listed as a resource", listed.contains(name));
        }
    }

    private static void records() throws Exception {
        String name = Scenarios.named("records");
        Scenarios.createTopic(name, 2, Map.of("retention.ms", "-1"));
        Scenarios.produce(name, 2, 0, 20);
        TopicPartition p0 = new TopicPartition(name, 0);
        TopicPartition p1 = new TopicPartition(name, 1);
        try (Admin admin = Scenarios.admin()) {
            for (Map.Entry<String, OffsetSpec> spec : new TreeMap<>(Map.of(
                    "earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(), "max timestamp", OffsetSpec.maxTimestamp(),
                    "a timestamp", OffsetSpec.forTimestamp(1_700_000_000_000L + 10_000))).entrySet()) {
                var found = Scenarios.get(admin.listOffsets(Map.of(p0, spec.getValue())).all()).get(p0);
                Scenarios.fact(spec.getKey(), found.offset() + " " + found.timestamp());
            }
            Scenarios.fact("low watermark", deletedLow(admin, p0, 4));
            Scenarios.fact("earliest after", Scenarios.get(admin.listOffsets(Map.of(p0, OffsetSpec.earliest())).all()).get(p0).offset());
            Scenarios.fact("beyond the end", Scenarios.errorOf(admin.deleteRecords(Map.of(p1, RecordsToDelete.beforeOffset(100))).all()));
            Scenarios.fact("everything", deletedLow(admin, p1, -1));
        }
        try (var consumer = Scenarios.consumer(null)) {
            consumer.assign(List.of(p0, p1));
            Scenarios.fact("still readable", Scenarios.pollUntil(consumer, 6).size() + Scenarios.pollFor(consumer, 200).size());
        }
    }

    private static long deletedLow(Admin admin, TopicPartition partition, long offset) throws Exception {
        return Scenarios.get(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(offset))).lowWatermarks().get(partition)).lowWatermark();
    }

    private static TreeMap<String, String> listed(Admin admin, ListGroupsOptions options) throws Exception {
        TreeMap<String, String> found = new TreeMap<>();
        for (GroupListing group : Scenarios.get(admin.listGroups(options).all())) {
            if (group.groupId().startsWith(Scenarios.named("groups"))) {
                found.put(group.groupId().substring(Scenarios.prefix.length()), group.groupState().map(GroupState::toString).orElse("?") + " " + group.type().map(GroupType::toString).orElse("?") + " " + group.protocol());
            }
        }
        return found;
    }

    @SuppressWarnings("removal")
    private static long olderListing(Admin admin, String group) throws Exception {
        var listings = Scenarios.get(admin.listConsumerGroups(new ListConsumerGroupsOptions()).all());
        return listings.stream().filter(listing -> listing.groupId().equals(group)).count();
    }

    private static void groups() throws Exception {
        String stable = Scenarios.named("groups-stable");
        String empty = Scenarios.named("groups-empty");
        String unknown = Scenarios.named("groups-unknown");
        Scenarios.createTopic(stable, 2);
        Scenarios.createTopic(empty, 1);
        Scenarios.Member a = new Scenarios.Member(stable, stable, "client.id", "client-a", "group.instance.id", "instance-a");
        Scenarios.waitFor("A to own all", () -> a.owns() == 2);
        try (Admin admin = Scenarios.admin()) {
            Scenarios.get(admin.alterConsumerGroupOffsets(empty, Map.of(new TopicPartition(empty, 0), new OffsetAndMetadata(0))).all());
            Scenarios.fact("all", listed(admin, new ListGroupsOptions()));
            Scenarios.fact("stable", listed(admin, new ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE))));
            Scenarios.fact("empty", listed(admin, new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY))));
            Scenarios.fact("classic", listed(admin, new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC))));
            Scenarios.fact("new type", listed(admin, new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))));
            Scenarios.fact("for consumers", listed(admin, ListGroupsOptions.forConsumerGroups()));
            Scenarios.fact("the older call", olderListing(admin, stable));
            ConsumerGroupDescription described = Scenarios.get(admin.describeConsumerGroups(List.of(stable)).all()).get(stable);
            Scenarios.fact("described", described.groupState() + " " + described.type() + " " + described.partitionAssignor() + " " + described.isSimpleConsumerGroup());
            MemberDescription member = described.members().iterator().next();
            Scenarios.fact("member", member.clientId() + " " + member.groupInstanceId().orElse("?") + " " + member.host() + " " + member.assignment().topicPartitions().size());
            Scenarios.fact("coordinator", described.coordinator().port() == Integer.parseInt(Scenarios.bootstrap.split(":")[1]));
            ConsumerGroupDescription idle = Scenarios.get(admin.describeConsumerGroups(List.of(empty)).all()).get(empty);
            Scenarios.fact("described empty", idle.groupState() + " " + idle.members().size());
            Scenarios.fact("described unknown", Scenarios.errorOf(admin.describeConsumerGroups(List.of(unknown)).all()));
            Scenarios.fact("described as classic", Scenarios.get(admin.describeClassicGroups(List.of(stable)).all()).get(stable).state().toString());
            Scenarios.fact("delete a running group", Scenarios.errorOf(admin.deleteConsumerGroups(List.of(stable)).all()));
            Scenarios.fact("delete an empty group", Scenarios.errorOf(admin.deleteConsumerGroups(List.of(empty)).all()));
            Scenarios.fact("delete an unknown group", Scenarios.errorOf(admin.deleteConsumerGroups(List.of(unknown)).all()));
            a.close();
            Scenarios.fact("after the delete", listed(admin, new ListGroupsOptions()).get("groups-empty") == null);
        }
    }

    private static void groupOffsets() throws Exception {
        String name = Scenarios.named("group-offsets");
        Scenarios.createTopic(name, 2);
        Scenarios.produce(name, 2, 0, 10);
        TopicPartition p0 = new TopicPartition(name, 0);
        TopicPartition p1 = new TopicPartition(name, 1);
        Scenarios.Member a = new Scenarios.Member(name, name);
        Scenarios.waitFor("all read", () -> a.seen() == 10);
        try (Admin admin = Scenarios.admin()) {
            Scenarios.waitFor("both committed", () -> {
                try {
                    return Scenarios.get(admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata()).size() == 2;
                } catch (Exception e) {
                    return false;
                }
            });
            Scenarios.fact("committed", offsets(admin, name));
            Scenarios.fact("alter in a running group", Scenarios.errorOf(admin.alterConsumerGroupOffsets(name, Map.of(p0, new OffsetAndMetadata(1))).all()));
            Scenarios.fact("delete a subscribed topic's", Scenarios.errorOf(admin.deleteConsumerGroupOffsets(name, Set.of(p0)).all()));
            a.close();
            Scenarios.fact("alter in an empty group", Scenarios.errorOf(admin.alterConsumerGroupOffsets(name, Map.of(p0, new OffsetAndMetadata(1, "moved"))).all()));
            Scenarios.fact("altered", offsets(admin, name));
            Scenarios.fact("alter for an unknown partition", Scenarios.errorOf(admin.alterConsumerGroupOffsets(name, Map.of(new TopicPartition(name, 9), new OffsetAndMetadata(1))).all()));
            Scenarios.fact("delete", Scenarios.errorOf(admin.deleteConsumerGroupOffsets(name, Set.of(p1)).all()));
            Scenarios.fact("left", offsets(admin, name));
            Scenarios.fact("of an unknown group", Scenarios.get(admin.listConsumerGroupOffsets(name + "-nobody").partitionsToOffsetAndMetadata()).size());
            Scenarios.fact("delete in an unknown group", Scenarios.errorOf(admin.deleteConsumerGroupOffsets(name + "-nobody", Set.of(p1)).all()));
        }
    }

    private static Map<String, Long> offsets(Admin admin, String group) throws Exception {
        Map<String, Long> found = new TreeMap<>();
        Scenarios.get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
            .forEach((partition, stored) -> found.put(String.valueOf(partition.partition()), stored == null ? -1 : stored.offset()));
        return found;
    }

    private static void removeMembers() throws Exception {
        String name = Scenarios.named("remove-members");
        Scenarios.createTopic(name, 2);
        List<Scenarios.Member> members = new ArrayList<>();
        members.add(new Scenarios.Member(name, name, "group.instance.id", "one"));
        Scenarios.waitFor("one member", () -> members.get(0).owns() == 2);
        try (Admin admin = Scenarios.admin()) {
            Scenarios.fact("an unknown instance", Scenarios.errorOf(admin.removeMembersFromConsumerGroup(name, new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("two")))).all()));
            members.get(0).close();
            Scenarios.fact("a static member stays after close", Scenarios.get(admin.describeConsumerGroups(List.of(name)).all()).get(name).members().size());
            Scenarios.fact("a known instance", Scenarios.errorOf(admin.removeMembersFromConsumerGroup(name, new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("one")))).all()));
            Scenarios.fact("members left", Scenarios.get(admin.describeConsumerGroups(List.of(name)).all()).get(name).members().size());
        }
    }
}

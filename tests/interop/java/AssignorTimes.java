import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.TargetAssignmentBuilder.ConsumerTargetAssignmentBuilder;
import org.apache.kafka.coordinator.group.modern.TargetAssignmentBuilder.TargetAssignmentResult;
import org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroupMember;

/**
 * How long Kafka takes for a group's target assignment: `AssignorTimes MEMBERS PARTITIONS TOPICS WARM_UPS RUNS`.
 *
 * All members subscribe to all topics; in the mixed group every other one to the first half of them. Per group and
 * change it prints GROUP, CHANGE, the fastest run in ms and the number of targets that changed, with tabs between, for the
 * whole of what the coordinator does then: asking the assignor, comparing, and making the records.
 */
public final class AssignorTimes {
    private AssignorTimes() { }

    /** Topics of equal size. */
    private static final class Image implements CoordinatorMetadataImage {
        private final Map<Uuid, TopicMetadata> byId = new HashMap<>();
        private final Map<String, TopicMetadata> byName = new LinkedHashMap<>();

        private record Topic(String name, Uuid id, int partitionCount) implements TopicMetadata {
            @Override
            public List<String> partitionRacks(int partition) { return List.of(); }
        }

        Image(int topics, int partitions) {
            for (int i = 0; i < topics; i++) {
                TopicMetadata topic = new Topic("topic-" + i, new Uuid(1, i), partitions / topics);
                byId.put(topic.id(), topic);
                byName.put(topic.name(), topic);
            }
        }

        @Override
        public Set<Uuid> topicIds() { return byId.keySet(); }

        @Override
        public Set<String> topicNames() { return byName.keySet(); }

        @Override
        public Optional<TopicMetadata> topicMetadata(String name) { return Optional.ofNullable(byName.get(name)); }

        @Override
        public Optional<TopicMetadata> topicMetadata(Uuid id) { return Optional.ofNullable(byId.get(id)); }

        @Override
        public CoordinatorMetadataDelta emptyDelta() { return CoordinatorMetadataDelta.EMPTY; }

        @Override
        public long version() { return 1; }

        @Override
        public boolean isEmpty() { return byId.isEmpty(); }
    }

    /** A group as the coordinator holds it. */
    private static final class Group {
        final Map<String, ConsumerGroupMember> members = new HashMap<>();
        final Map<String, Assignment> targets = new HashMap<>();
        final Map<Uuid, Map<Integer, String>> owners = new HashMap<>();

        final boolean mixed;

        Group(boolean mixed) {
            this.mixed = mixed;
        }

        Group(Group other) {
            mixed = other.mixed;
            members.putAll(other.members);
            targets.putAll(other.targets);
            other.owners.forEach((topic, byPartition) -> owners.put(topic, new HashMap<>(byPartition)));
        }

        void join(String id, int number, Image image) {
            List<String> topics = new ArrayList<>(image.topicNames());
            if (mixed && number % 2 == 1) topics = topics.subList(0, topics.size() / 2);
            members.put(id, new ConsumerGroupMember.Builder(id).setSubscribedTopicNames(topics).build());
        }

        void leave(String id) {
            members.remove(id);
            targets.remove(id);
            owners.values().forEach(byPartition -> byPartition.values().removeIf(id::equals));
        }

        void store(Map<String, MemberAssignment> assigned) {
            assigned.forEach((id, assignment) -> {
                targets.put(id, new Assignment(assignment.partitions()));
                assignment.partitions().forEach((topic, partitions) -> {
                    for (int partition : partitions) {
                        owners.computeIfAbsent(topic, __ -> new HashMap<>()).put(partition, id);
                    }
                });
            });
        }

        TargetAssignmentResult compute(ConsumerGroupPartitionAssignor assignor, Image image) {
            return new ConsumerTargetAssignmentBuilder("group", 1, assignor)
                .withTime(Time.SYSTEM)
                .withMembers(members)
                .withSubscriptionType(mixed ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS)
                .withTargetAssignment(targets)
                .withInvertedTargetAssignment(owners)
                .withMetadataImage(image)
                .build();
        }
    }

    private static void time(
        String name, String change, ConsumerGroupPartitionAssignor assignor, Group group, Image image, int warmUps, int runs
    ) {
        double fastest = Double.MAX_VALUE;
        int records = 0;
        for (int i = -warmUps; i < runs; i++) {
            long from = System.nanoTime();
            records = group.compute(assignor, image).records().size() - 1;
            if (i >= 0) fastest = Math.min(fastest, (System.nanoTime() - from) / 1e6);
        }
        System.out.printf("%s\t%s\t%.3f\t%d%n", name, change, fastest, records);
    }

    public static void main(String[] args) {
        int members = Integer.parseInt(args[0]);
        Image image = new Image(Integer.parseInt(args[2]), Integer.parseInt(args[1]));
        int warmUps = Integer.parseInt(args[3]);
        int runs = Integer.parseInt(args[4]);
        for (String name : List.of("uniform", "uniform, mixed", "range")) {
            boolean mixed = name.endsWith("mixed");
            ConsumerGroupPartitionAssignor assignor = Assignors.ALL.get(name.split(",")[0]);
            Group empty = new Group(mixed);
            for (int i = 0; i < members; i++) empty.join(String.format("member-%05d", i), i, image);
            time(name, "nothing", assignor, empty, image, warmUps, runs);
            Group assigned = new Group(empty);
            assigned.store(assigned.compute(assignor, image).targetAssignment());
            Group joined = new Group(assigned);
            joined.join(String.format("member-%05d-a", members / 2), members / 2, image);
            time(name, "join", assignor, joined, image, warmUps, runs);
            Group left = new Group(assigned);
            left.leave(String.format("member-%05d", members / 2));
            time(name, "leave", assignor, left, image, warmUps, runs);
        }
    }
}

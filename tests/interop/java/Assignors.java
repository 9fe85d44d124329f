import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Kafka's server-side assignors behind a pipe. One group per line on stdin, as JSON, one answer per line on stdout:
 *
 *   {"assignor": "uniform", "homogeneous": true, "topics": {HEX: PARTITIONS},
 *    "members": [{"id": ID, "instance": ID or null, "topics": [HEX], "target": {HEX: [PARTITION]}}]}
 *   ->  ok {ID: {HEX: [PARTITION]}}
 *
 * The assignor sees the members in the order of the line.
 */
public final class Assignors {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    static final Map<String, ConsumerGroupPartitionAssignor> ALL =
        Map.of("uniform", new UniformAssignor(), "range", new RangeAssignor());

    private Assignors() { }

    /** Topics that have partitions and no racks. */
    record Topics(Map<Uuid, Integer> counts) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topicId) {
            return counts.getOrDefault(topicId, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topicId, int partition) {
            return Set.of();
        }
    }

    private static Uuid uuid(String hex) {
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
        return new Uuid(bytes.getLong(), bytes.getLong());
    }

    private static String hex(Uuid id) {
        ByteBuffer bytes = ByteBuffer.allocate(16);
        bytes.putLong(id.getMostSignificantBits()).putLong(id.getLeastSignificantBits());
        return HexFormat.of().formatHex(bytes.array());
    }

    private static String answer(JsonNode group) throws Exception {
        Map<Uuid, Integer> counts = new HashMap<>();
        for (Map.Entry<String, JsonNode> topic : group.get("topics").properties()) {
            counts.put(uuid(topic.getKey()), topic.getValue().asInt());
        }
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (JsonNode member : group.get("members")) {
            String id = member.get("id").asText();
            Set<Uuid> subscribed = new LinkedHashSet<>();
            for (JsonNode topic : member.get("topics")) subscribed.add(uuid(topic.asText()));
            Map<Uuid, Set<Integer>> target = new HashMap<>();
            for (Map.Entry<String, JsonNode> topic : member.get("target").properties()) {
                Uuid topicId = uuid(topic.getKey());
                for (JsonNode partition : topic.getValue()) {
                    target.computeIfAbsent(topicId, __ -> new HashSet<>()).add(partition.asInt());
                    owners.computeIfAbsent(topicId, __ -> new HashMap<>()).put(partition.asInt(), id);
                }
            }
            members.put(id, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.ofNullable(member.get("instance").asText(null)), subscribed, new Assignment(target)));
        }
        SubscriptionType type =
            group.get("homogeneous").asBoolean() ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        Map<String, MemberAssignment> assigned = ALL.get(group.get("assignor").asText())
            .assign(new GroupSpecImpl(members, type, owners), new Topics(counts)).members();
        ObjectNode result = MAPPER.createObjectNode();
        for (Map.Entry<String, MemberAssignment> member : assigned.entrySet()) {
            ObjectNode own = result.putObject(member.getKey());
            for (Map.Entry<Uuid, Set<Integer>> topic : member.getValue().partitions().entrySet()) {
                ArrayNode partitions = own.putArray(hex(topic.getKey()));
                for (int partition : new TreeSet<>(topic.getValue())) partitions.add(partition);
            }
        }
        return MAPPER.writeValueAsString(result);
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
        String line;
        while ((line = in.readLine()) != null) {
            String reply;
            try {
                reply = "ok\t" + answer(MAPPER.readTree(line));
            } catch (Exception e) {
                reply = "err\t" + e.toString().replaceAll("\\s+", " ");
            }
            out.println(reply);
            if (!in.ready()) out.flush();
        }
        out.flush();
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Utils;

/**
 * The assignors of Kafka's client behind a pipe. One group per line on stdin, as JSON, one answer per line on stdout:
 *
 *   {"assignor": "range", "topics": {NAME: [[RACK or null of a replica, ...] of each partition]},
 *    "members": [{"id": ID, "instance": ID or null, "topics": [NAME], "owned": [[NAME, PARTITION]], "generation": N,
 *                 "rack": RACK or null, "user_data": HEX or null}]}
 *   ->  ok {"assigned": {ID: [[NAME, PARTITION]]}, "user_data": {ID: HEX}}
 *
 * The assignor sees the user data of the line; the answer has what Kafka's own assignor writes.
 */
public final class ClassicAssignors {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private static final Map<String, Supplier<ConsumerPartitionAssignor>> ALL = Map.of(
        "range", RangeAssignor::new,
        "roundrobin", RoundRobinAssignor::new,
        "sticky", StickyAssignor::new,
        "cooperative-sticky", CooperativeStickyAssignor::new);

    private ClassicAssignors() { }

    private static Cluster cluster(JsonNode topics) {
        List<Node> nodes = new ArrayList<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        for (Map.Entry<String, JsonNode> topic : topics.properties()) {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : racks) {
                    replicas.add(new Node(nodes.size(), "h", 1, rack.isNull() ? null : rack.asText()));
                    nodes.add(replicas.get(replicas.size() - 1));
                }
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), number++, all.length > 0 ? all[0] : null, all, all));
            }
        }
        return new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
    }

    private static Subscription subscription(String assignor, JsonNode member, ObjectNode userDatas) {
        List<String> topics = new ArrayList<>();
        for (JsonNode topic : member.get("topics")) topics.add(topic.asText());
        List<TopicPartition> owned = new ArrayList<>();
        for (JsonNode one : member.get("owned")) owned.add(new TopicPartition(one.get(0).asText(), one.get(1).asInt()));
        int generation = member.get("generation").asInt();
        // As the member itself did: it was assigned these partitions, then says what it had.
        ConsumerPartitionAssignor own = ALL.get(assignor).get();
        if (generation >= 0) {
            own.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("group", generation, "id", Optional.empty()));
        }
        ByteBuffer written = own.subscriptionUserData(Set.copyOf(topics));
        if (written != null) userDatas.put(member.get("id").asText(), HEX.formatHex(Utils.toArray(written)));
        String given = member.get("user_data").asText(null);
        ByteBuffer userData = given == null ? null : ByteBuffer.wrap(HEX.parseHex(given));
        boolean isEager = !assignor.equals("cooperative-sticky");
        Subscription found = new Subscription(topics, userData, isEager ? List.of() : owned,
            generation, Optional.ofNullable(member.get("rack").asText(null)));
        found.setGroupInstanceId(Optional.ofNullable(member.get("instance").asText(null)));
        return found;
    }

    private static String answer(JsonNode group) throws Exception {
        String name = group.get("assignor").asText();
        Map<String, Subscription> members = new HashMap<>();
        ObjectNode result = MAPPER.createObjectNode();
        ObjectNode answers = result.putObject("assigned");
        ObjectNode userDatas = result.putObject("user_data");
        for (JsonNode member : group.get("members")) {
            members.put(member.get("id").asText(), subscription(name, member, userDatas));
        }
        Map<String, Assignment> assigned = ALL.get(name).get()
            .assign(cluster(group.get("topics")), new GroupSubscription(members)).groupAssignment();
        for (Map.Entry<String, Assignment> member : assigned.entrySet()) {
            ArrayNode own = answers.putArray(member.getKey());
            for (TopicPartition one : member.getValue().partitions()) own.addArray().add(one.topic()).add(one.partition());
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

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
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
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RegisterBrokerRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.common.runtime.KRaftCoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.Utils;
import org.apache.kafka.coordinator.group.modern.ModernGroup;
import org.apache.kafka.coordinator.group.modern.SubscriptionCount;
import org.apache.kafka.coordinator.group.modern.consumer.TopicRegexResolver;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.slf4j.helpers.NOPLogger;

/**
 * What Kafka's group coordinator computes from metadata, behind a pipe. One request per line on stdin, tab separated,
 * one answer per line on stdout:
 *
 *   hash   {"brokers": [RACK or null, ..], "topics": {NAME: {"id": HEX, "partitions": [[BROKER, ..], ..]}},
 *           "subscribed": [NAME, ..]}
 *     ->   ok {"topics": {NAME: HASH}, "group": HASH}       the hash of every subscribed topic, and of the group
 *   regex  {"patterns": [PATTERN, ..], "topics": [NAME, ..]}
 *     ->   ok {PATTERN: {"error": TEXT or null, "topics": [NAME, ..]}}
 *
 * and "err MESSAGE" for whatever fails.
 */
public final class GroupOracle {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private static MetadataDelta newDelta() {
        return new MetadataDelta.Builder().setImage(MetadataImage.EMPTY).build();
    }

    private static CoordinatorMetadataImage imageOf(MetadataDelta delta) {
        return new KRaftCoordinatorMetadataImage(delta.apply(new MetadataProvenance(100, 1, 1, true)));
    }

    private static Uuid uuid(String hex) {
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
        return new Uuid(bytes.getLong(), bytes.getLong());
    }

    private static CoordinatorMetadataImage imageOf(JsonNode asked) {
        MetadataDelta delta = newDelta();
        int broker = 0;
        for (JsonNode rack : asked.get("brokers")) {
            delta.replay(new RegisterBrokerRecord()
                .setBrokerId(broker++).setIncarnationId(Uuid.ONE_UUID).setFenced(false)
                .setRack(rack.isNull() ? null : rack.asText()));
        }
        asked.get("topics").fields().forEachRemaining(topic -> {
            Uuid id = uuid(topic.getValue().get("id").asText());
            delta.replay(new TopicRecord().setName(topic.getKey()).setTopicId(id));
            int partition = 0;
            for (JsonNode listed : topic.getValue().get("partitions")) {
                List<Integer> replicas = new ArrayList<>();
                listed.forEach(replica -> replicas.add(replica.asInt()));
                delta.replay(new PartitionRecord()
                    .setTopicId(id).setPartitionId(partition++).setReplicas(replicas).setIsr(replicas)
                    .setLeader(replicas.get(0)));
            }
        });
        return imageOf(delta);
    }

    private static ObjectNode hash(JsonNode asked) {
        CoordinatorMetadataImage image = imageOf(asked);
        Map<String, SubscriptionCount> subscribed = new HashMap<>();
        ObjectNode answer = MAPPER.createObjectNode();
        ObjectNode topics = answer.putObject("topics");
        for (JsonNode name : asked.get("subscribed")) {
            subscribed.put(name.asText(), new SubscriptionCount(1, 0));
            topics.put(name.asText(), Utils.computeTopicHash(name.asText(), image));
        }
        return answer.put("group", ModernGroup.computeMetadataHash(subscribed, new HashMap<>(), image));
    }

    private static ObjectNode regex(JsonNode asked) {
        MetadataDelta delta = newDelta();
        int number = 0;
        for (JsonNode name : asked.get("topics")) {
            delta.replay(new TopicRecord().setName(name.asText()).setTopicId(new Uuid(1, ++number)));
        }
        CoordinatorMetadataImage image = imageOf(delta);
        TopicRegexResolver resolver = new TopicRegexResolver(Optional::empty, Time.SYSTEM);
        ObjectNode answer = MAPPER.createObjectNode();
        for (JsonNode listed : asked.get("patterns")) {
            String pattern = listed.asText();
            ObjectNode result = answer.putObject(pattern);
            String error = null;
            try {
                Pattern.compile(pattern);
            } catch (PatternSyntaxException e) {
                error = e.getDescription();
            } catch (StackOverflowError e) {
                error = "StackOverflowError";
            }
            result.put("error", error);
            if (error == null) {
                var resolved = resolver.resolveRegularExpressions(null, "g", NOPLogger.NOP_LOGGER, image, Set.of(pattern));
                var topics = result.putArray("topics");
                new TreeSet<>(resolved.get(pattern).topics()).forEach(topics::add);
            }
        }
        return answer;
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", 2);
            try {
                JsonNode asked = MAPPER.readTree(words[1]);
                ObjectNode answer = words[0].equals("hash") ? hash(asked) : regex(asked);
                out.println("ok\t" + MAPPER.writeValueAsString(answer));
            } catch (Exception e) {
                out.println("err\t" + e.toString().replace('\n', ' '));
            }
            if (!in.ready()) out.flush();
        }
        out.flush();
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One consumer that polls, and does what its standard input asks for, one JSON object per line, until it ends.
 *
 *   java GroupClient BOOTSTRAP GROUP TOPIC[,TOPIC]... [NAME VALUE]...      a topic ^... is a pattern
 *
 * {"do":"commit","offsets":[[TOPIC,PARTITION,OFFSET,METADATA],..]}, {"do":"positions"}, {"do":"committed"}, {"do":"close"}
 * are answered by {"answer":[[TOPIC,PARTITION,OFFSET],..]} or {"error":TEXT}; without being asked it prints
 * {"event":"assigned"|"revoked"|"lost","partitions":[[TOPIC,PARTITION],..]}.
 */
public final class GroupClient implements ConsumerRebalanceListener {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private final KafkaConsumer<byte[], byte[]> consumer;

    private GroupClient(Properties settings) {
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void say(String name, Object value, Object... more) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put(name, value);
        for (int i = 0; i < more.length; i += 2) line.put((String) more[i], more[i + 1]);
        try {
            System.out.println(MAPPER.writeValueAsString(line));
        } catch (java.io.IOException e) {
            throw new IllegalStateException(e);
        }
        System.out.flush();
    }

    private static List<Object> pairs(Collection<TopicPartition> partitions) {
        List<Object> found = new ArrayList<>();
        for (TopicPartition at : partitions) found.add(List.of(at.topic(), at.partition()));
        return found;
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        say("event", "assigned", "partitions", pairs(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        say("event", "revoked", "partitions", pairs(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        say("event", "lost", "partitions", pairs(partitions));
    }

    private List<Object> answer(JsonNode asked) {
        List<Object> found = new ArrayList<>();
        switch (asked.get("do").asText()) {
            case "commit": {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (JsonNode one : asked.get("offsets")) {
                    TopicPartition at = new TopicPartition(one.get(0).asText(), one.get(1).asInt());
                    offsets.put(at, new OffsetAndMetadata(one.get(2).asLong(), one.get(3).asText()));
                }
                consumer.commitSync(offsets);
                break;
            }
            case "positions":
                for (TopicPartition at : consumer.assignment()) {
                    found.add(List.of(at.topic(), at.partition(), consumer.position(at)));
                }
                break;
            case "committed":
                consumer.committed(consumer.assignment()).forEach((at, offset) ->
                    found.add(List.of(at.topic(), at.partition(), offset == null ? -1L : offset.offset())));
                break;
            default:
                throw new IllegalArgumentException(asked.toString());
        }
        return found;
    }

    private void work(BlockingQueue<JsonNode> asked) {
        while (true) {
            consumer.poll(Duration.ofMillis(50));
            JsonNode one = asked.poll();
            if (one == null) continue;
            if (one.get("do").asText().equals("close")) break;
            try {
                say("answer", answer(one));
            } catch (KafkaException e) {
                say("error", e.toString());
            }
        }
        consumer.close();
        say("answer", List.of());
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        for (int i = 3; i < args.length; i += 2) settings.put(args[i], args[i + 1]);
        BlockingQueue<JsonNode> asked = new LinkedBlockingQueue<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Thread reader = new Thread(() -> {
            try {
                for (String line = lines.readLine(); line != null; line = lines.readLine()) asked.add(MAPPER.readTree(line));
                asked.add(MAPPER.readTree("{\"do\":\"close\"}"));
            } catch (java.io.IOException e) {
                System.exit(1);
            }
        });
        reader.setDaemon(true);
        reader.start();
        GroupClient client = new GroupClient(settings);
        if (args[2].startsWith("^")) {
            client.consumer.subscribe(Pattern.compile(args[2]), client);
        } else {
            client.consumer.subscribe(List.of(args[2].split(",")), client);
        }
        client.work(asked);
    }
}

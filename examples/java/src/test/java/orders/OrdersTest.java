package orders;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

@Timeout(60)
class OrdersTest {
    @RegisterExtension
    static final KcoordExtension kcoord = new KcoordExtension();

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String ONE_MEMBER = "{\"group\": \"billing\", \"members\": 1}";

    private final List<TopicPartition> lost = new ArrayList<>();

    @Test
    void ordersAreBilled() throws Exception {
        produce("order 1");
        try (Consumer<String, String> consumer = join()) {
            assertEquals("order 1", next(consumer));
            consumer.commitSync();
            String first = "{\"group\": \"billing\", \"topic\": \"orders\", \"partition\": 0, \"offset\": 1}";
            control("wait_committed", first);
        }
    }

    /** The coordinator stores the offset, and the connection is closed before the client gets the answer. */
    @Test
    void aCommitWithoutAnAnswerIsRepeated() throws Exception {
        produce("order 1");
        try (Consumer<String, String> consumer = join()) {
            next(consumer);
            JsonNode rule = control("cut", "{\"api\": \"OffsetCommit\", \"at\": \"after\", \"group\": \"billing\"}");
            consumer.commitSync();
            assertEquals(1, control("rule", "{\"id\": " + rule.get("id") + "}").get("hits").asInt());
            JsonNode requests = control("requests", "{\"api\": \"OffsetCommit\", \"group\": \"billing\"}");
            assertEquals(2, requests.size(), requests.toPrettyString());
            assertTrue(requests.get(0).get("is_handled").asBoolean());
            assertFalse(requests.get(0).get("is_sent").asBoolean());
            assertTrue(requests.get(1).get("is_sent").asBoolean());
            JsonNode committed = JSON.readTree("[{\"topic\": \"orders\", \"partition\": 0, \"offset\": 1}]");
            assertEquals(committed, control("committed", "{\"group\": \"billing\"}"));
        }
    }

    /** The member learns from its next heartbeat that its session has ended. Nobody waits for a timeout. */
    @Test
    void aMemberComesBackAfterItsSessionHasEnded() throws Exception {
        produce("order 1");
        try (Consumer<String, String> consumer = join()) {
            next(consumer);
            consumer.commitSync();
            control("wait_stable", ONE_MEMBER);
            control("expire_member", "{\"group\": \"billing\"}");
            while (lost.isEmpty()) {
                consumer.poll(Duration.ofMillis(100));
            }
            assertEquals(List.of(new TopicPartition("orders", 0)), lost);
            produce("order 2");
            assertEquals("order 2", next(consumer));
            control("wait_stable", ONE_MEMBER);
        }
    }

    private static JsonNode control(String operation, String json) throws Exception {
        return JSON.readTree(kcoord.control(operation, json));
    }

    private static void produce(String value) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", kcoord.bootstrap());
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("orders", value)).get();
        }
    }

    /** A member of the group; only the test commits. */
    private Consumer<String, String> join() {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", kcoord.bootstrap(),
                "group.id", "billing",
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false,
                "heartbeat.interval.ms", 100);
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of("orders"), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                lost.addAll(partitions);
            }
        });
        return consumer;
    }

    /** The value of the next record. */
    private static String next(Consumer<String, String> consumer) {
        while (true) {
            for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofSeconds(1))) {
                return one.value();
            }
        }
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Many consumers and producers in one JVM, each on a thread of its own, that do what standard input asks for.
 *
 * A line is {"id":NUMBER,"client":NAME,"do":STEP,...}; each is answered by {"id":NUMBER,"result":...} or
 * {"id":NUMBER,"error":CLASS,"detail":TEXT}. The steps of a consumer: "consumer" (with "settings" and "topic"), "poll"
 * (with "ms"; the result is [[PARTITION,OFFSET,VALUE],..]), "commit", "close". Of a producer: "producer" (with
 * "settings"), "init", "begin", "send" (with "topic", "partition", "value"), "offsets" (with "topic", "offset",
 * "group"), "end", "abort", "close".
 */
public final class ClientSteps {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final Map<String, ClientSteps> CLIENTS = new LinkedHashMap<>();

    private final ExecutorService thread = Executors.newSingleThreadExecutor(work -> {
        Thread one = new Thread(work);
        one.setDaemon(true);
        return one;
    });
    private KafkaConsumer<byte[], byte[]> consumer;
    private KafkaProducer<byte[], byte[]> producer;

    private static synchronized void say(Map<String, Object> line) {
        try {
            System.out.println(MAPPER.writeValueAsString(line));
        } catch (java.io.IOException e) {
            throw new IllegalStateException(e);
        }
        System.out.flush();
    }

    private static Properties settings(JsonNode asked) {
        Properties settings = new Properties();
        asked.get("settings").fields().forEachRemaining(one -> settings.put(one.getKey(), one.getValue().asText()));
        return settings;
    }

    private Object work(JsonNode asked) throws Exception {
        switch (asked.get("do").asText()) {
            case "consumer":
                consumer = new KafkaConsumer<>(settings(asked), new ByteArrayDeserializer(), new ByteArrayDeserializer());
                consumer.subscribe(List.of(asked.get("topic").asText()));
                return "";
            case "poll": {
                List<Object> found = new ArrayList<>();
                for (ConsumerRecord<byte[], byte[]> one : consumer.poll(Duration.ofMillis(asked.get("ms").asLong()))) {
                    found.add(List.of(one.partition(), one.offset(), new String(one.value(), StandardCharsets.UTF_8)));
                }
                return found;
            }
            case "commit":
                consumer.commitSync();
                return "";
            case "producer":
                producer = new KafkaProducer<>(settings(asked), new ByteArraySerializer(), new ByteArraySerializer());
                return "";
            case "init":
                producer.initTransactions();
                return "";
            case "begin":
                producer.beginTransaction();
                return "";
            case "send": {
                byte[] value = asked.get("value").asText().getBytes(StandardCharsets.UTF_8);
                try {
                    return producer.send(new ProducerRecord<>(asked.get("topic").asText(), asked.get("partition").asInt(), null, value)).get().offset();
                } catch (ExecutionException e) {
                    throw (Exception) e.getCause();
                }
            }
            case "offsets": {
                TopicPartition at = new TopicPartition(asked.get("topic").asText(), 0);
                OffsetAndMetadata offset = new OffsetAndMetadata(asked.get("offset").asLong());
                producer.sendOffsetsToTransaction(Map.of(at, offset), new ConsumerGroupMetadata(asked.get("group").asText()));
                return "";
            }
            case "end":
                producer.commitTransaction();
                return "";
            case "abort":
                producer.abortTransaction();
                return "";
            case "close":
                if (consumer != null) consumer.close();
                if (producer != null) producer.close(Duration.ZERO);
                return "";
            default:
                throw new IllegalArgumentException(asked.toString());
        }
    }

    private void answer(JsonNode asked) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", asked.get("id").asInt());
        try {
            line.put("result", work(asked));
        } catch (Exception e) {
            line.put("error", e.getClass().getSimpleName());
            line.put("detail", String.valueOf(e));
        }
        say(line);
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = MAPPER.readTree(line);
            String name = asked.get("client").asText();
            ClientSteps client = CLIENTS.computeIfAbsent(name, one -> new ClientSteps());
            client.thread.submit(() -> client.answer(asked));
            if (asked.get("do").asText().equals("close")) CLIENTS.remove(name).thread.shutdown();
        }
        System.exit(0);
    }
}

import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * One consumer that says what it is given, what it gives up and what it processes, until its standard input ends.
 *
 *   java GroupMember BOOTSTRAP GROUP TOPIC [NAME VALUE]...
 *
 * One JSON object per line, with the time in seconds of the machine's monotonic clock:
 * {"at":..,"event":"assigned"|"given up","partitions":[..]} or {"at":..,"event":"record","partition":..,"offset":..,"value":..}.
 */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private final KafkaConsumer<String, String> consumer;
    private final Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();

    private GroupMember(Properties settings) {
        consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static void say(String event, Object... more) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("at", System.nanoTime() / 1e9);
        line.put("event", event);
        for (int i = 0; i < more.length; i += 2) line.put((String) more[i], more[i + 1]);
        try {
            System.out.println(MAPPER.writeValueAsString(line));
        } catch (java.io.IOException e) {
            throw new IllegalStateException(e);
        }
        System.out.flush();
    }

    private static List<Integer> numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).sorted().toList();
    }

    private void commit() {
        if (done.isEmpty()) return;
        try {
            consumer.commitSync(new HashMap<>(done));
        } catch (KafkaException e) {
            // What was not committed is processed again.
        }
        done.clear();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        say("assigned", "partitions", numbers(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        commit();
        say("given up", "partitions", numbers(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        say("given up", "partitions", numbers(partitions));
    }

    private void work(String topic, AtomicBoolean stopping) {
        consumer.subscribe(List.of(topic), this);
        while (!stopping.get()) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                say("record", "partition", record.partition(), "offset", record.offset(), "value", record.value());
                done.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            commit();
        }
        consumer.close();
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        for (int i = 3; i < args.length; i += 2) settings.put(args[i], args[i + 1]);
        AtomicBoolean stopping = new AtomicBoolean();
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException e) {
                // ended as well
            }
            stopping.set(true);
        });
        watcher.setDaemon(true);
        watcher.start();
        new GroupMember(settings).work(args[2], stopping);
    }
}

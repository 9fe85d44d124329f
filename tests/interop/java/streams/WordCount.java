import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words exactly once, until it is killed.
 *
 *   java WordCount HOST:PORT NAME STATE_DIRECTORY memory|rocksdb [SETTING=VALUE...]
 *
 * Lines come from the topic NAME-lines. Each new count of a word goes to NAME-counts, with the word as the key. The words
 * pass through a repartition topic, and the store has a changelog topic. Prints an error of Streams and goes on.
 */
public final class WordCount {
    private WordCount() { }

    public static void main(String[] args) throws Exception {
        String name = args[1];
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, name);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        // Every count is sent, not only the last one before a commit.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "50");
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), "2000");
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), "2000");
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), "200");
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        for (String setting : Arrays.copyOfRange(args, 4, args.length)) {
            settings.put(setting.substring(0, setting.indexOf('=')), setting.substring(setting.indexOf('=') + 1));
        }
        KafkaStreams streams = new KafkaStreams(counting(name, args[3]).build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("error " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((after, before) -> System.out.println("state " + after));
        streams.start();
        new CountDownLatch(1).await();
    }

    private static StreamsBuilder counting(String name, String kind) {
        Materialized<String, Long, KeyValueStore<Bytes, byte[]>> store = Materialized.as(
            kind.equals("memory") ? Stores.inMemoryKeyValueStore("counts") : Stores.persistentKeyValueStore("counts"));
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(name + "-lines")
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count(store.withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(count -> count.toString())
            .to(name + "-counts");
        return builder;
    }
}

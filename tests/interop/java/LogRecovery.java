import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.zip.CRC32;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * A broker's own code on the directories of partitions, without a broker:
 *
 *   load DIR...              opens each as after a crash; one line each, "ok END BASE:SIZE:CRC ..." or "err MESSAGE"
 *   clean SEGMENT_BYTES DIR  compacts the closed segments once, into segments of that size
 *   roll DIR                 begins a new segment
 */
public final class LogRecovery {
    private static final int DAY_MS = 24 * 3600 * 1000;

    public static void main(String[] args) throws Exception {
        if (args[0].equals("clean")) {
            clean(Integer.parseInt(args[1]), new File(args[2]));
            System.exit(0);
        }
        if (args[0].equals("roll")) {
            UnifiedLog log = open(new File(args[1]));
            log.roll(Optional.empty());
            log.close();
            System.exit(0);
        }
        for (int i = 1; i < args.length; i++) {
            System.out.println(load(new File(args[i])));
        }
        System.exit(0);
    }

    private static UnifiedLog open(File dir) throws Exception {
        LogConfig config = new LogConfig(Map.of(
            "cleanup.policy", "compact",
            "segment.bytes", Integer.toString(1 << 20),
            "segment.index.bytes", "4096",
            "file.delete.delay.ms", "0"));
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        return UnifiedLog.create(
            dir, config, 0L, 0L, scheduler, new BrokerTopicStats(), Time.SYSTEM, DAY_MS,
            new ProducerStateManagerConfig(DAY_MS, false), DAY_MS, new LogDirFailureChannel(1), false, Optional.empty());
    }

    private static String load(File dir) {
        try {
            UnifiedLog log = open(dir);
            StringBuilder line = new StringBuilder("ok ").append(log.logEndOffset());
            for (LogSegment segment : log.logSegments()) {
                byte[] bytes = Files.readAllBytes(segment.log().file().toPath());
                CRC32 crc = new CRC32();
                crc.update(bytes);
                line.append(' ').append(segment.baseOffset()).append(':').append(bytes.length);
                line.append(':').append(crc.getValue());
            }
            log.closeHandlers();
            return line.toString();
        } catch (Throwable error) {
            return "err " + error.toString().replace('\n', ' ');
        }
    }

    private static void clean(int segmentBytes, File dir) throws Exception {
        UnifiedLog log = open(dir);
        Throttler throttler = new Throttler(1e9, 1000, "cleaner-io", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(
                0, new SkimpyOffsetMap(1 << 20), 1 << 20, 1 << 20, 0.9, throttler, Time.SYSTEM, partition -> { }) {
            @Override
            public List<List<LogSegment>> groupSegmentsBySize(
                    List<LogSegment> found, int maxSize, int maxIndexSize, long end) throws IOException {
                return super.groupSegmentsBySize(found, segmentBytes, maxIndexSize, end);
            }
        };
        List<LogSegment> segments = new ArrayList<>(log.logSegments());
        long active = segments.get(segments.size() - 1).baseOffset();
        cleaner.clean(new LogToClean(log, 0L, active, true));
        // Removing the old files is left to a thread.
        Thread.sleep(500);
        log.closeHandlers();
    }
}

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/**
 * The partitions that Kafka's producer chooses for 10,000 keys, 100 in a line, each as a digit of base 36. Key i is the
 * first i % 33 bytes of the SHA-256 of the decimal number i; its topic has 1 + i % 36 partitions.
 */
public final class Partitions {
    public static void main(String[] args) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 10_000; i++) {
            byte[] hash = digest.digest(Integer.toString(i).getBytes(StandardCharsets.UTF_8));
            int partition = BuiltInPartitioner.partitionForKey(Arrays.copyOf(hash, i % 33), 1 + i % 36);
            text.append(Character.forDigit(partition, 36));
            if (i % 100 == 99) {
                text.append('\n');
            }
        }
        System.out.print(text);
    }
}

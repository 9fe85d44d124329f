import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.BinaryNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.Map;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.internal.MemoryRecords;

/**
 * Kafka's codec behind a pipe. One request per line on stdin, tab separated, one answer per line on stdout:
 *
 *   encode  NAME VERSION JSON   ->  ok HEX
 *   decode  NAME VERSION HEX    ->  ok JSON      (fails when bytes are left over)
 *   apis                        ->  ok [{"key":..,"name":..,"min":..,"max":..,"requestHeader":[..],"responseHeader":[..]}]
 *
 * and "err MESSAGE" for whatever the codec refuses. NAME is the name of the message in its schema.
 */
public final class Oracle {
    private static final String[] PLACES = {
        "org.apache.kafka.common.message.%sData",
        "org.apache.kafka.common.message.%s",
        "org.apache.kafka.coordinator.group.generated.%s",
        "org.apache.kafka.common.metadata.%s",
        "org.apache.kafka.coordinator.transaction.generated.%s",
    };
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final Map<String, Codec> CODECS = new HashMap<>();

    private record Codec(Class<?> type, Method read, Method write) { }

    private static Codec codec(String name) throws Exception {
        Codec known = CODECS.get(name);
        if (known != null) return known;
        for (String place : PLACES) {
            String className = String.format(place, name);
            try {
                Class<?> converter = Class.forName(className + "JsonConverter");
                Class<?> type = Class.forName(className);
                Codec made = new Codec(type,
                    converter.getMethod("read", JsonNode.class, short.class),
                    converter.getMethod("write", type, short.class, boolean.class));
                CODECS.put(name, made);
                return made;
            } catch (ClassNotFoundException e) {
                // the next place may have it
            }
        }
        throw new IllegalArgumentException("no message called " + name);
    }

    private static String encode(String name, short version, String json) throws Exception {
        Message message = (Message) codec(name).read().invoke(null, MAPPER.readTree(json), version);
        ByteBufferAccessor out = MessageUtil.toByteBufferAccessor(message, version);
        ByteBuffer buffer = out.buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    private static String decode(String name, short version, String hex) throws Exception {
        Codec codec = codec(name);
        Message message = (Message) codec.type().getDeclaredConstructor().newInstance();
        ByteBuffer buffer = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
        message.read(new ByteBufferAccessor(buffer), version);
        if (buffer.hasRemaining()) throw new IllegalStateException(buffer.remaining() + " bytes left over");
        JsonNode json = (JsonNode) codec.write().invoke(null, message, version, true);
        restoreRecords(json, message);
        return MAPPER.writeValueAsString(json);
    }

    /** Kafka's converters read records from base64 but write an empty string for them: put the bytes in. */
    private static void restoreRecords(JsonNode json, Object data) throws Exception {
        if (!(json instanceof ObjectNode node)) return;
        for (Map.Entry<String, JsonNode> entry : node.properties()) {
            if (!entry.getValue().isBinary() && !entry.getValue().isContainerNode()) continue;
            Object value = data.getClass().getMethod(entry.getKey()).invoke(data);
            if (value instanceof MemoryRecords records) {
                ByteBuffer buffer = records.buffer();
                byte[] bytes = new byte[buffer.remaining()];
                buffer.get(bytes);
                entry.setValue(BinaryNode.valueOf(bytes));
            } else if (value instanceof Message) {
                restoreRecords(entry.getValue(), value);
            } else if (value instanceof Iterable<?> elements && entry.getValue().isArray()) {
                Iterator<JsonNode> nodes = entry.getValue().elements();
                for (Object element : elements) restoreRecords(nodes.next(), element);
            }
        }
    }

    private static String apis() {
        StringBuilder out = new StringBuilder("[");
        for (ApiKeys api : ApiKeys.values()) {
            if (!api.hasValidVersion()) continue;
            if (out.length() > 1) out.append(',');
            StringBuilder requests = new StringBuilder();
            StringBuilder responses = new StringBuilder();
            for (short v = api.oldestVersion(); v <= api.latestVersion(); v++) {
                if (v > api.oldestVersion()) { requests.append(','); responses.append(','); }
                requests.append(api.requestHeaderVersion(v));
                responses.append(api.responseHeaderVersion(v));
            }
            out.append(String.format(
                "{\"key\":%d,\"name\":\"%s\",\"min\":%d,\"max\":%d,\"requestHeader\":[%s],\"responseHeader\":[%s]}",
                api.id, api.name, api.oldestVersion(), api.latestVersion(), requests, responses));
        }
        return out.append(']').toString();
    }

    private static String answer(String line) throws Exception {
        String[] parts = line.split("\t", 4);
        switch (parts[0]) {
            case "encode": return encode(parts[1], Short.parseShort(parts[2]), parts[3]);
            case "decode": return decode(parts[1], Short.parseShort(parts[2]), parts[3]);
            case "apis": return apis();
            default: throw new IllegalArgumentException("no command " + parts[0]);
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
        String line;
        while ((line = in.readLine()) != null) {
            String reply;
            try {
                reply = "ok\t" + answer(line);
            } catch (Throwable e) {
                Throwable cause = e instanceof InvocationTargetException ? e.getCause() : e;
                reply = "err\t" + String.valueOf(cause).replaceAll("[\\r\\n\\t]+", " ");
            }
            out.println(reply);
            if (!in.ready()) out.flush();
        }
    }
}

package orders;

import java.io.BufferedReader;
import java.io.IOException;
import java.lang.ProcessBuilder.Redirect;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A kcoord server for the tests of a class, with its log in memory. It is empty before each test.
 *
 * <pre>{@code
 * @RegisterExtension
 * static final KcoordExtension kcoord = new KcoordExtension();
 * }</pre>
 *
 * Copy this file. It needs the command kcoord, JUnit 5 and Java 17.
 */
public final class KcoordExtension implements BeforeAllCallback, BeforeEachCallback, AfterAllCallback {
    private static final int START_SECONDS = 60;
    private static final int STOP_SECONDS = 10;

    private final HttpClient http = HttpClient.newHttpClient();
    private final List<String> command = new ArrayList<>();
    private Process process;
    private String bootstrap;
    private String url;
    private String token;

    /** Further arguments go to `kcoord serve`, such as "--set", "num.partitions=3". */
    public KcoordExtension(String... arguments) {
        String name = System.getenv("KCOORD");
        command.add(name == null || name.isEmpty() ? "kcoord" : name);
        command.addAll(List.of("serve", "--profile", "test", "--control", "127.0.0.1:0", "--exit-with-parent"));
        command.addAll(List.of(arguments));
    }

    /** Uses a server that runs elsewhere, such as in a container, and never ends it. */
    public static KcoordExtension connect(String bootstrap, String controlUrl, String token) {
        KcoordExtension extension = new KcoordExtension();
        extension.command.clear();
        extension.bootstrap = bootstrap;
        extension.url = controlUrl;
        extension.token = token;
        return extension;
    }

    /** The address for clients, such as 127.0.0.1:34895. */
    public String bootstrap() {
        return bootstrap;
    }

    /**
     * Calls an operation, such as "wait_stable", with its parameters as a JSON object, and returns its result as JSON.
     *
     * @throws IOException if the operation fails; a wait that fails says what the server has seen
     */
    public String control(String operation, String json) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/v1/" + operation))
                .header("Authorization", "Bearer " + token)
                .POST(BodyPublishers.ofString(json))
                .build();
        HttpResponse<String> response = http.send(request, BodyHandlers.ofString());
        String body = response.body();
        if (response.statusCode() != 200) {
            throw new IOException("kcoord: " + operation + ": " + response.statusCode() + " " + body);
        }
        // The answer is {"result": ...}.
        return body.substring(body.indexOf(':') + 1, body.lastIndexOf('}')).strip();
    }

    @Override
    public void beforeAll(ExtensionContext context) throws IOException, InterruptedException {
        if (command.isEmpty()) {
            return;
        }
        process = new ProcessBuilder(command).redirectError(Redirect.INHERIT).start();
        // A server that does not become ready is ended, and then its output ends as well.
        Executor later = CompletableFuture.delayedExecutor(START_SECONDS, TimeUnit.SECONDS);
        CompletableFuture<Void> deadline = CompletableFuture.runAsync(process::destroyForcibly, later);
        BufferedReader output = process.inputReader();
        while (bootstrap == null) {
            String line = output.readLine();
            if (line == null) {
                throw new IOException("kcoord did not start: exit code " + process.waitFor());
            }
            String[] words = line.split(" ");
            if (line.startsWith("kcoord control ")) {
                url = words[2];
                token = words[3];
            } else if (line.startsWith("kcoord ready ")) {
                bootstrap = words[2];
            }
        }
        deadline.cancel(false);
    }

    @Override
    public void beforeEach(ExtensionContext context) throws IOException, InterruptedException {
        control("reset", "{}");
    }

    @Override
    public void afterAll(ExtensionContext context) throws InterruptedException {
        if (process == null) {
            return;
        }
        process.destroy(); // SIGTERM
        if (!process.waitFor(STOP_SECONDS, TimeUnit.SECONDS)) {
            process.destroyForcibly();
        }
        bootstrap = null;
    }
}

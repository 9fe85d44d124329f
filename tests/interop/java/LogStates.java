import com.sun.jdi.Bootstrap;
import com.sun.jdi.Method;
import com.sun.jdi.ReferenceType;
import com.sun.jdi.VirtualMachine;
import com.sun.jdi.connect.Connector;
import com.sun.jdi.connect.LaunchingConnector;
import com.sun.jdi.event.BreakpointEvent;
import com.sun.jdi.event.Event;
import com.sun.jdi.event.EventSet;
import com.sun.jdi.event.VMDeathEvent;
import com.sun.jdi.event.VMDisconnectEvent;
import com.sun.jdi.request.BreakpointRequest;
import com.sun.jdi.request.EventRequest;
import java.io.File;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;

/**
 * Runs another program under a debugger, stops it before every operation on files, and copies a directory whenever
 * something is different in it: what is left if the process ends there.
 *
 *   LogStates DIR TARGET CLASS ARGUMENT...     copies of DIR are TARGET/0000, TARGET/0001, ...
 */
public final class LogStates {
    private static final Map<String, Set<String>> STOPS = Map.of(
        "java.nio.file.Files", Set.of("move", "delete", "deleteIfExists"),
        "java.io.File", Set.of("delete", "renameTo"),
        "java.nio.channels.FileChannel", Set.of("open"),
        "java.io.RandomAccessFile", Set.of("<init>"));

    private static String before = "";
    private static int count = 0;

    public static void main(String[] args) throws Exception {
        LaunchingConnector connector = Bootstrap.virtualMachineManager().defaultConnector();
        Map<String, Connector.Argument> given = connector.defaultArguments();
        given.get("options").setValue(
            "-cp \"" + System.getProperty("java.class.path") + "\" -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
                + " -Dorg.slf4j.simpleLogger.defaultLogLevel=error");
        given.get("main").setValue(String.join(" ", Arrays.copyOfRange(args, 2, args.length)));
        VirtualMachine vm = connector.launch(given);
        drain(vm.process().getInputStream());
        drain(vm.process().getErrorStream());
        File dir = new File(args[0]);
        Path target = Path.of(args[1]);
        for (Map.Entry<String, Set<String>> stop : STOPS.entrySet()) {
            var prepare = vm.eventRequestManager().createClassPrepareRequest();
            prepare.addClassFilter(stop.getKey());
            prepare.enable();
            for (ReferenceType type : vm.classesByName(stop.getKey())) {
                stopIn(vm, type);
            }
        }
        while (true) {
            EventSet events = vm.eventQueue().remove();
            for (Event event : events) {
                if (event instanceof com.sun.jdi.event.ClassPrepareEvent loaded) {
                    stopIn(vm, loaded.referenceType());
                } else if (event instanceof BreakpointEvent) {
                    copy(dir, target);
                } else if (event instanceof VMDeathEvent || event instanceof VMDisconnectEvent) {
                    copy(dir, target);
                    System.exit(vm.process().waitFor());
                }
            }
            events.resume();
        }
    }

    private static void stopIn(VirtualMachine vm, ReferenceType type) {
        for (Method method : type.methods()) {
            if (STOPS.get(type.name()).contains(method.name()) && method.location() != null) {
                BreakpointRequest request = vm.eventRequestManager().createBreakpointRequest(method.location());
                request.setSuspendPolicy(EventRequest.SUSPEND_ALL);
                request.enable();
            }
        }
    }

    private static void copy(File dir, Path target) throws Exception {
        File[] files = dir.listFiles();
        Arrays.sort(files);
        StringBuilder now = new StringBuilder();
        for (File file : files) {
            now.append(file.getName()).append(' ').append(file.length()).append('\n');
        }
        if (now.toString().equals(before)) {
            return;
        }
        before = now.toString();
        Path copied = target.resolve(String.format("%04d", count++));
        Files.createDirectories(copied);
        for (File file : files) {
            try {
                Files.copy(file.toPath(), copied.resolve(file.getName()));
            } catch (NoSuchFileException gone) {
                // At the very end the other process is not stopped. Its last act is to rename a checkpoint.
            }
        }
    }

    private static void drain(InputStream stream) {
        Thread thread = new Thread(() -> {
            try {
                stream.transferTo(System.err);
            } catch (java.io.IOException gone) {
                // The other process has ended.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;

/**
 * Warm: runs several programs in turn in one JVM, which is much faster than a JVM for each.
 * A line in: {"main", "args": [...], "stdin", "properties": {...}}; a line out: {"bytes", "errors", "failed"}, followed
 * by this number of bytes of output. errors: its standard error. failed: whether its main threw (errors then has the
 * stack trace). System properties are restored afterwards.
 */
public final class Warm {
    private Warm() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = System.out;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            JSONObject result = run(JSON.parseObject(line), output);
            out.println(result.fluentPut("bytes", output.size()).toJSONString());
            output.writeTo(out);
            out.flush();
        }
        System.exit(0);
    }

    private static JSONObject run(JSONObject what, ByteArrayOutputStream output) throws Exception {
        Properties before = (Properties) System.getProperties().clone();
        PrintStream console = System.err;
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        boolean failed = false;
        for (Map.Entry<String, Object> property : what.getJSONObject("properties").entrySet()) {
            System.setProperty(property.getKey(), String.valueOf(property.getValue()));
        }
        System.setIn(new ByteArrayInputStream(what.getString("stdin").getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(output, false, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        try {
            Object arguments = what.getJSONArray("args").toArray(new String[0]);
            Class.forName(what.getString("main")).getMethod("main", String[].class).invoke(null, arguments);
        } catch (InvocationTargetException error) {
            error.getCause().printStackTrace();
            failed = true;
        } finally {
            System.out.flush();
            System.setOut(console); // what a program's threads print after its end belongs to no result
            System.setErr(console);
            System.setProperties(before);
        }
        return new JSONObject(true).fluentPut("failed", failed).fluentPut("errors", errors.toString(StandardCharsets.UTF_8));
    }
}

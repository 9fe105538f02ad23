import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** AdminSteps: runs one mqadmin command per step, {"args": [...]}, in one JVM; a result has the command's output. */
public final class AdminSteps {
    private AdminSteps() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream console = System.out;
        List<JSONObject> steps = Lines.steps();
        for (int i = 0; i < steps.size(); i++) {
            Admin.forgetCommands(); // some commands can be used once only
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream into = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(into);
            System.setErr(into);
            try {
                MQAdminStartup.main0(steps.get(i).getJSONArray("args").toArray(new String[0]), null);
            } finally {
                System.setOut(console);
            }
            Lines.print(Lines.result(i).fluentPut("printed", printed.toString(StandardCharsets.UTF_8)));
        }
        System.exit(0);
    }
}

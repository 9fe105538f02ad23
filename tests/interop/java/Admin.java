import java.lang.reflect.Field;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Admin ARGS...: mqadmin, also more than once in one JVM: some of its commands keep the client of their first use. */
public final class Admin {
    private Admin() {
    }

    public static void main(String[] args) throws Exception {
        Field commands = MQAdminStartup.class.getDeclaredField("subCommandList");
        commands.setAccessible(true);
        ((List<?>) commands.get(null)).clear();
        MQAdminStartup.main(args);
    }
}

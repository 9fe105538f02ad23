import java.lang.reflect.Field;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Admin ARGS...: mqadmin, also more than once in one JVM: some of its commands keep the client of their first use. */
public final class Admin {
    private Admin() {
    }

    public static void main(String[] args) throws Exception {
        forgetCommands();
        MQAdminStartup.main(args);
    }

    /** Its list of commands has a name of its own in each version. */
    static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}

import java.lang.reflect.Field;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Admin ARGS...: runs mqadmin; repeatable in one JVM, although some commands keep the client of their first use. */
public final class Admin {
    private Admin() {
    }

    public static void main(String[] args) throws Exception {
        forgetCommands();
        MQAdminStartup.main(args);
    }

    /** The name of mqadmin's list of commands differs between versions. */
    static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}

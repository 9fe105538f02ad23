import java.util.Arrays;

/** Main CLASS ARGS...: runs a program and exits when its main returns; Netty's threads would otherwise run for seconds. */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        Class.forName(args[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
        System.out.flush();
        System.exit(0);
    }
}

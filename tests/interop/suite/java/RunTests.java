import com.alibaba.fastjson.JSONObject;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs the tests of a class, named by the first argument, and prints a line for each: "result: " and JSON. */
public final class RunTests {
    public static void main(String[] arguments) throws Exception {
        JUnitCore junit = new JUnitCore();
        junit.addListener(new RunListener() {
            private String failure;

            @Override
            public void testStarted(Description test) {
                failure = "";
            }

            @Override
            public void testFailure(Failure found) {
                failure = found.getTrace();
                if (found.getDescription().getMethodName() == null) {  // of the class, before or after its tests
                    print("(class)", failure);
                }
            }

            @Override
            public void testAssumptionFailure(Failure found) {
                failure = "skipped: " + found.getMessage();
            }

            @Override
            public void testIgnored(Description test) {
                print(test.getMethodName(), "skipped: ignored by RocketMQ");
            }

            @Override
            public void testFinished(Description test) {
                print(test.getMethodName(), failure);
            }
        });
        junit.run(Class.forName(arguments[0]));
        System.exit(0);  // clients leave threads
    }

    private static void print(String test, String failure) {
        JSONObject line = new JSONObject();
        line.put("test", test == null ? "(class)" : test);
        line.put("failure", failure);
        System.out.println("result: " + line.toJSONString());
    }
}

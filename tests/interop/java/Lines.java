import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** Shared parts of the drivers: steps and results are JSON, one object per line. Bytes are written as hex. */
final class Lines {
    private Lines() {
    }

    /** Signs requests when the system property interop.keys says ACCESS:SECRET; null otherwise. */
    static RPCHook hook() {
        String[] keys = System.getProperty("interop.keys", "").split(":");
        return keys.length < 2 ? null : new AclClientRPCHook(new SessionCredentials(keys[0], keys[1]));
    }

    static List<JSONObject> steps() throws Exception {
        List<JSONObject> steps = new ArrayList<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            steps.add(JSON.parseObject(line));
        }
        return steps;
    }

    /** Handles one step of a driver. */
    interface Action {
        void run(int step, JSONObject what) throws Exception;
    }

    /** Does each step in order; the result of a failed one is its error. */
    static void each(Action action) throws Exception {
        List<JSONObject> steps = steps();
        for (int i = 0; i < steps.size(); i++) {
            try {
                action.run(i, steps.get(i));
            } catch (Exception error) {
                print(failure(i, error));
            }
        }
    }

    static synchronized void print(JSONObject result) {
        System.out.println(result.toJSONString());
    }

    /** Repeats calls that need a topic's route for a while: a new client on a busy machine may find no route at first. */
    static <T> T patiently(Callable<T> call) throws Exception {
        long until = System.nanoTime() + 20_000_000_000L;
        while (true) {
            try {
                return call.call();
            } catch (MQClientException error) {
                String text = String.valueOf(error.getMessage());
                boolean noRoute = text.startsWith("No route info") || text.startsWith("Can not find Message Queue");
                if (!noRoute || System.nanoTime() > until) {
                    throw error;
                }
                Thread.sleep(100);
            }
        }
    }

    static JSONObject result(int step) {
        JSONObject result = new JSONObject(true);
        result.put("step", step);
        return result;
    }

    static JSONObject failure(int step, Throwable error) {
        JSONObject result = result(step);
        result.put("error", error.getClass().getSimpleName());
        result.put("message", String.valueOf(error.getMessage()));
        Throwable root = error instanceof MQBrokerException ? error : error.getCause();
        if (root instanceof MQBrokerException) {
            result.put("code", ((MQBrokerException) root).getResponseCode());
            result.put("remark", ((MQBrokerException) root).getErrorMessage());
        }
        return result;
    }

    static JSONObject received(int step, MessageExt message) {
        JSONObject result = result(step);
        result.put("topic", message.getTopic());
        result.put("queueId", message.getQueueId());
        result.put("queueOffset", message.getQueueOffset());
        result.put("physicalOffset", message.getCommitLogOffset());
        result.put("storeSize", message.getStoreSize());
        result.put("msgId", message.getMsgId());
        result.put("flag", message.getFlag());
        result.put("sysFlag", message.getSysFlag());
        result.put("bornTimestamp", message.getBornTimestamp());
        result.put("storeTimestamp", message.getStoreTimestamp());
        result.put("reconsumeTimes", message.getReconsumeTimes());
        result.put("tags", message.getTags());
        result.put("keys", message.getKeys());
        result.put("properties", message.getProperties());
        result.put("body", hex(message.getBody()));
        return result;
    }

    static Message message(JSONObject step) {
        Message message = new Message(step.getString("topic"), unhex(step.getString("body")));
        if (step.containsKey("tags")) {
            message.setTags(step.getString("tags"));
        }
        if (step.containsKey("keys")) {
            message.setKeys(step.getString("keys"));
        }
        if (step.containsKey("delay")) {
            message.setDelayTimeLevel(step.getIntValue("delay"));
        }
        message.setFlag(step.getIntValue("flag"));
        message.setWaitStoreMsgOK(!Boolean.FALSE.equals(step.getBoolean("wait")));
        JSONObject properties = step.getJSONObject("properties");
        if (properties != null) {
            for (Map.Entry<String, Object> property : properties.entrySet()) {
                message.putUserProperty(property.getKey(), String.valueOf(property.getValue()));
            }
        }
        return message;
    }

    static byte[] unhex(String text) {
        byte[] bytes = new byte[text.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes == null ? new byte[0] : bytes) {
            text.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return text.toString();
    }
}

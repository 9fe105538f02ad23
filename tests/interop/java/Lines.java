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

/** What the drivers share: steps come in and answers go out as JSON, one object a line. Bytes travel as hex. */
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

    /** What a driver does for a step. */
    interface Action {
        void run(int step, JSONObject what) throws Exception;
    }

    /** Does each step in order; one that fails is answered with its error. */
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

    static synchronized void print(JSONObject answer) {
        System.out.println(answer.toJSONString());
    }

    /** What asks for a topic's route is asked again for a while: a cold client on a busy machine is told "none" at first. */
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

    static JSONObject answer(int step) {
        JSONObject answer = new JSONObject(true);
        answer.put("step", step);
        return answer;
    }

    static JSONObject failure(int step, Throwable error) {
        JSONObject answer = answer(step);
        answer.put("error", error.getClass().getSimpleName());
        answer.put("message", String.valueOf(error.getMessage()));
        Throwable root = error instanceof MQBrokerException ? error : error.getCause();
        if (root instanceof MQBrokerException) {
            answer.put("code", ((MQBrokerException) root).getResponseCode());
            answer.put("remark", ((MQBrokerException) root).getErrorMessage());
        }
        return answer;
    }

    static JSONObject received(int step, MessageExt message) {
        JSONObject answer = answer(step);
        answer.put("topic", message.getTopic());
        answer.put("queueId", message.getQueueId());
        answer.put("queueOffset", message.getQueueOffset());
        answer.put("physicalOffset", message.getCommitLogOffset());
        answer.put("storeSize", message.getStoreSize());
        answer.put("msgId", message.getMsgId());
        answer.put("flag", message.getFlag());
        answer.put("sysFlag", message.getSysFlag());
        answer.put("bornTimestamp", message.getBornTimestamp());
        answer.put("storeTimestamp", message.getStoreTimestamp());
        answer.put("reconsumeTimes", message.getReconsumeTimes());
        answer.put("tags", message.getTags());
        answer.put("keys", message.getKeys());
        answer.put("properties", message.getProperties());
        answer.put("body", hex(message.getBody()));
        return answer;
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

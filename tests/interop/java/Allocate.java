import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Allocate: the queues that RocketMQ's strategies assign to each member. Input line: {"strategy", "topic", "brokers":
 * [name...], "queues": per broker, "members": [client id...]}, both lists sorted; output line: {"shares":
 * [["broker:id"...]...]}.
 */
public final class Allocate {
    private Allocate() {
    }

    static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            default:
                throw new IllegalArgumentException(name);
        }
    }

    public static void main(String[] args) throws Exception {
        List<JSONObject> steps = Lines.steps();
        for (int i = 0; i < steps.size(); i++) {
            Lines.print(Lines.result(i).fluentPut("shares", shares(steps.get(i))));
        }
    }

    private static List<List<String>> shares(JSONObject what) {
        List<MessageQueue> queues = new ArrayList<>();
        for (Object broker : what.getJSONArray("brokers")) {
            for (int id = 0; id < what.getIntValue("queues"); id++) {
                queues.add(new MessageQueue(what.getString("topic"), (String) broker, id));
            }
        }
        List<String> members = what.getJSONArray("members").toJavaList(String.class);
        List<List<String>> shares = new ArrayList<>();
        for (String member : members) {
            List<String> share = new ArrayList<>();
            for (MessageQueue queue : strategy(what.getString("strategy")).allocate("g", member, queues, members)) {
                share.add(queue.getBrokerName() + ":" + queue.getQueueId());
            }
            shares.add(share);
        }
        return shares;
    }
}

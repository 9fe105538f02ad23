import com.alibaba.fastjson.JSONObject;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Consume NAMESRV GROUP: does each step in order and prints one line per result.
 * {"do": "pull", "topic", "max": 32, "tags": "*"}  every message of every queue, then a line {"end": true}
 * {"do": "queues", "topic"}                        a line a queue with its min and max offset
 * {"do": "view", "topic", "id"}                    the message with this broker id or client unique id
 * {"do": "key", "topic", "key"}                    the messages with this key
 * {"do": "search", "topic", "queue", "time"}       the queue offset at a time (ms)
 * {"do": "status", "topic", "queue", "offset"}     the pull status and next offset at an offset
 */
public final class Consume {
    private final DefaultMQPullConsumer consumer;

    private Consume(DefaultMQPullConsumer consumer) {
        this.consumer = consumer;
    }

    public static void main(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args[1], Lines.hook());
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        Lines.each(new Consume(consumer)::run);
        consumer.shutdown();
    }

    private void run(int step, JSONObject what) throws Exception {
        switch (what.getString("do")) {
            case "pull":
                pull(step, what);
                return;
            case "queues":
                queues(step, what);
                return;
            case "view":
                Lines.print(Lines.received(step, consumer.viewMessage(what.getString("topic"), what.getString("id"))));
                return;
            case "key":
                String key = what.getString("key");
                QueryResult found = consumer.queryMessage(what.getString("topic"), key, 32, 0, Long.MAX_VALUE);
                for (MessageExt message : found.getMessageList()) {
                    Lines.print(Lines.received(step, message));
                }
                return;
            case "search":
                long offset = consumer.searchOffset(queue(what), what.getLongValue("time"));
                Lines.print(Lines.result(step).fluentPut("offset", offset));
                return;
            case "status":
                PullResult result = consumer.pull(queue(what), "*", what.getLongValue("offset"), 32);
                Lines.print(Lines.result(step)
                    .fluentPut("status", result.getPullStatus().name())
                    .fluentPut("next", result.getNextBeginOffset())
                    .fluentPut("min", result.getMinOffset())
                    .fluentPut("max", result.getMaxOffset()));
                return;
            default:
                throw new IllegalArgumentException(what.toJSONString());
        }
    }

    private Set<MessageQueue> queues(String topic) throws Exception {
        return Lines.patiently(() -> consumer.fetchSubscribeMessageQueues(topic));
    }

    private MessageQueue queue(JSONObject what) throws Exception {
        for (MessageQueue queue : queues(what.getString("topic"))) {
            if (queue.getQueueId() == what.getIntValue("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no such queue: " + what.toJSONString());
    }

    private void queues(int step, JSONObject what) throws Exception {
        for (MessageQueue queue : new TreeSet<>(queues(what.getString("topic")))) {
            Lines.print(Lines.result(step)
                .fluentPut("broker", queue.getBrokerName())
                .fluentPut("queueId", queue.getQueueId())
                .fluentPut("min", consumer.minOffset(queue))
                .fluentPut("max", consumer.maxOffset(queue)));
        }
    }

    private void pull(int step, JSONObject what) throws Exception {
        String tags = what.containsKey("tags") ? what.getString("tags") : "*";
        int most = what.containsKey("max") ? what.getIntValue("max") : 32;
        for (MessageQueue queue : new TreeSet<>(queues(what.getString("topic")))) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult result = consumer.pull(queue, tags, offset, most);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        Lines.print(Lines.received(step, message));
                    }
                }
                if (result.getNextBeginOffset() <= offset) {
                    throw new IllegalStateException(queue + " stays at " + offset + " of " + end + ": " + result);
                }
                offset = result.getNextBeginOffset();
            }
        }
        Lines.print(Lines.result(step).fluentPut("end", true));
    }
}

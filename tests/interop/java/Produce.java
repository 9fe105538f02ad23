import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Produce NAMESRV GROUP: does each step in order and prints one result per step (a oneway has none but "sent").
 * step: {"how": "sync|async|oneway|queue|selector|batch", "topic", "body": hex, "tags", "keys", "flag", "delay",
 * "wait", "properties", "queue": id, "arg": n, "messages": [step, ...] for a batch}
 */
public final class Produce {
    private final DefaultMQProducer producer;

    private Produce(DefaultMQProducer producer) {
        this.producer = producer;
    }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[1], Lines.hook());
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        Produce driver = new Produce(producer);
        Lines.each((step, what) -> Lines.patiently(() -> {
            driver.run(step, what);
            return step;
        }));
        producer.shutdown();
    }

    private void run(int step, JSONObject what) throws Exception {
        switch (what.getString("how")) {
            case "async":
                async(step, Lines.message(what));
                return;
            case "oneway":
                producer.sendOneway(Lines.message(what));
                Lines.print(Lines.result(step).fluentPut("sent", true));
                return;
            case "queue":
                print(step, producer.send(Lines.message(what), queue(what)));
                return;
            case "selector":
                int index = what.getIntValue("arg");
                print(step, producer.send(Lines.message(what), (queues, m, arg) -> queues.get((Integer) arg % queues.size()), index));
                return;
            case "batch":
                print(step, producer.send(batch(what.getJSONArray("messages"))));
                return;
            default:
                print(step, producer.send(Lines.message(what)));
        }
    }

    private MessageQueue queue(JSONObject what) throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(what.getString("topic"))) {
            if (queue.getQueueId() == what.getIntValue("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + what.getIntValue("queue"));
    }

    private void async(int step, Message message) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                print(step, result);
                done.countDown();
            }

            @Override
            public void onException(Throwable error) {
                Lines.print(Lines.failure(step, error));
                done.countDown();
            }
        });
        if (!done.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no callback within 30 s");
        }
    }

    private static List<Message> batch(JSONArray steps) {
        List<Message> messages = new ArrayList<>();
        for (Object step : steps) {
            messages.add(Lines.message((JSONObject) JSON.toJSON(step)));
        }
        return messages;
    }

    private static void print(int step, SendResult result) {
        Lines.print(Lines.result(step)
            .fluentPut("status", result.getSendStatus().name())
            .fluentPut("msgId", result.getMsgId())
            .fluentPut("offsetMsgId", result.getOffsetMsgId())
            .fluentPut("broker", result.getMessageQueue().getBrokerName())
            .fluentPut("queueId", result.getMessageQueue().getQueueId())
            .fluentPut("queueOffset", result.getQueueOffset()));
    }
}

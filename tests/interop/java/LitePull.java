import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * LitePull NAMESRV GROUP TOPIC HOW: a lite pull consumer that prints a line for each message and commits, until it is
 * killed. HOW: "subscribe", or "assign" for all queues from their start.
 */
public final class LitePull {
    private LitePull() {
    }

    /** Repeats a seek: a client of 5.5 that has just started may close the connection that the seek uses. */
    private static void seekToStart(DefaultLitePullConsumer consumer, MessageQueue queue) throws Exception {
        for (int attempts = 1; ; attempts++) {
            try {
                consumer.seek(queue, 0);
                return;
            } catch (MQClientException error) {
                if (attempts == 50) {
                    throw error;
                }
                Thread.sleep(100);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[1], Lines.hook());
        consumer.setNamesrvAddr(args[0]);
        consumer.setAutoCommit(false);
        if (args[3].equals("subscribe")) {
            consumer.subscribe(args[2], "*");
            consumer.start();
        } else {
            consumer.start();
            Collection<MessageQueue> queues = Lines.patiently(() -> consumer.fetchMessageQueues(args[2]));
            consumer.assign(new ArrayList<>(queues));
            for (MessageQueue queue : queues) {
                seekToStart(consumer, queue);
            }
        }
        Lines.print(new JSONObject().fluentPut("started", true));
        while (true) {
            List<MessageExt> messages = consumer.poll(1000);
            for (MessageExt message : messages) {
                Lines.print(Lines.received(0, message));
            }
            if (!messages.isEmpty()) {
                consumer.commitSync();
            }
        }
    }
}

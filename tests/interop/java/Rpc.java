import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Rpc NAMESRV GROUP: one request per step ({"topic", "body": hex, ...}); the result is the reply as a message.
 * Rpc NAMESRV GROUP TOPIC: replies to every request of the topic by "re: " and its body, until it is killed.
 */
public final class Rpc {
    private Rpc() {
    }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.start();
        if (args.length > 2) {
            reply(args[0], args[2], producer);
        }
        Lines.each((step, what) -> {
            Message request = Lines.message(what);
            Message reply = Lines.patiently(() -> producer.request(request, 15000));
            Lines.print(Lines.received(step, (MessageExt) reply));
        });
        producer.shutdown();
    }

    private static void reply(String namesrv, String topic, DefaultMQProducer producer) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop_rpc_reader");
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        Map<MessageQueue, Long> offsets = new HashMap<>();
        Set<MessageQueue> queues = Lines.patiently(() -> consumer.fetchSubscribeMessageQueues(topic));
        while (true) {
            for (MessageQueue queue : queues) {
                PullResult found = consumer.pull(queue, "*", offsets.getOrDefault(queue, 0L), 32);
                offsets.put(queue, found.getNextBeginOffset());
                if (found.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt request : found.getMsgFoundList()) {
                        String body = "re: " + new String(request.getBody(), StandardCharsets.UTF_8);
                        producer.send(MessageUtil.createReplyMessage(request, body.getBytes(StandardCharsets.UTF_8)));
                    }
                }
            }
            Thread.sleep(10);
        }
    }
}

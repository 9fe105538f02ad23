import static java.nio.charset.StandardCharsets.UTF_8;

import com.alibaba.fastjson.JSONObject;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Push NAMESRV GROUP TOPIC STRATEGY ORDERLY [ASSIGNED]: a push consumer that prints a line for each message, until it is
 * killed. STRATEGY: a name of Allocate. ORDERLY: true or false. ASSIGNED: true if the broker assigns its queues, since 5.0.
 */
public final class Push {
    private Push() {
    }

    public static void main(String[] args) throws Exception {
        AllocateMessageQueueStrategy strategy = Allocate.strategy(args[3]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1], Lines.hook(), strategy);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], "*");
        if (Boolean.parseBoolean(args[4])) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                print(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                print(messages);
                return isForLater(messages.get(0))
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        if (args.length > 5 && Boolean.parseBoolean(args[5])) {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.start();
        Lines.print(new JSONObject().fluentPut("started", true));
        Thread.sleep(Long.MAX_VALUE);
    }

    /** A message whose body is "later" is sent back once. */
    private static boolean isForLater(MessageExt message) {
        return message.getReconsumeTimes() == 0 && new String(message.getBody(), UTF_8).equals("later");
    }

    private static void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            Lines.print(Lines.received(0, message));
        }
    }
}

import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Soak ROLE NAMESRV TOPIC GROUP FIRST PAUSE_MS: a member of the soak's crowd; see tools/soak/member.py. */
public final class Soak {
    private static final int FAILS_EVERY = 211;

    private Soak() {
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("produce")) {
            produce(args[1], args[2], args[3], Long.parseLong(args[4]), Long.parseLong(args[5]));
        } else {
            consume(args[0].equals("orderly"), args[1], args[2], args[3]);
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void produce(String namesrv, String topic, String group, long first, long pause) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("soak" + first);
        producer.start();
        AtomicBoolean sending = new AtomicBoolean(true);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            sending.set(false);
            try {
                main.join(10_000);
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
            producer.shutdown();
        }));
        say("ready");
        for (long number = first; sending.get(); number++) {
            try {
                SendResult result = producer.send(new Message(topic, Long.toString(number).getBytes(StandardCharsets.UTF_8)));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    say("ack " + number + " " + result.getMessageQueue().getQueueId() + " " + result.getQueueOffset());
                }
            } catch (Exception error) {
                say("unknown " + number);
            }
            Thread.sleep(pause);
        }
    }

    private static void consume(boolean orderly, String namesrv, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Function<MessageExt, Boolean> handle = one -> {
            long number = Long.parseLong(new String(one.getBody(), StandardCharsets.UTF_8));
            if (!orderly && number % FAILS_EVERY == 0 && one.getReconsumeTimes() == 0) {
                say("fail " + number);
                return false;
            }
            say("got " + number + " " + one.getQueueId() + " " + one.getQueueOffset() + " " + one.getReconsumeTimes());
            return true;
        };
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                messages.stream().allMatch(handle::apply) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                messages.stream().allMatch(handle::apply) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        Runtime.getRuntime().addShutdownHook(new Thread(consumer::shutdown));
        say("ready");
        Thread.sleep(Long.MAX_VALUE);
    }
}

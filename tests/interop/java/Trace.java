import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Trace NAMESRV GROUP: runs a traced client, and reads traces with RocketMQ's own code.
 * {"do": "send", a message}                a traced producer sends it
 * {"do": "consume", "topic"}               a traced push consumer consumes one message
 * {"do": "decode", "text"}                 a line for each record of a trace message's body
 * {"do": "forward", "from", "to", "body"}  takes one message and sends its user properties on
 * One process has one traced client: two would share a group, and the second send no traces.
 */
public final class Trace {
    private static final long WAIT_MS = 2_000; // the dispatcher's threads have no flush that waits for responses

    private final String namesrv;
    private final String group;

    private Trace(String namesrv, String group) {
        this.namesrv = namesrv;
        this.group = group;
    }

    public static void main(String[] args) throws Exception {
        Lines.each(new Trace(args[0], args[1])::run);
        System.exit(0);
    }

    private void run(int step, JSONObject what) throws Exception {
        switch (what.getString("do")) {
            case "send":
                SendResult sent = send(Lines.message(what), true);
                Thread.sleep(WAIT_MS);
                Lines.print(Lines.result(step).fluentPut("msgId", sent.getMsgId()).fluentPut("offsetMsgId", sent.getOffsetMsgId()));
                return;
            case "consume":
                Lines.print(Lines.received(step, take(what.getString("topic"), true)));
                return;
            case "forward":
                MessageExt taken = take(what.getString("from"), false);
                Message onward = new Message(what.getString("to"), Lines.unhex(what.getString("body")));
                for (Map.Entry<String, String> property : taken.getProperties().entrySet()) {
                    if (!MessageConst.STRING_HASH_SET.contains(property.getKey())) {
                        onward.putUserProperty(property.getKey(), property.getValue());
                    }
                }
                Lines.print(Lines.result(step).fluentPut("msgId", send(onward, false).getMsgId()));
                return;
            default:
                for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(what.getString("text"))) {
                    print(step, context, context.getTraceBeans().get(0));
                }
        }
    }

    private SendResult send(Message message, boolean traced) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group, traced, null);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        return producer.send(message, 10_000);
    }

    private MessageExt take(String topic, boolean traced) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        AtomicReference<MessageExt> taken = new AtomicReference<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group + "_" + topic, traced, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            taken.compareAndSet(null, messages.get(0));
            done.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!done.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no message of " + topic + " within a minute");
        }
        Thread.sleep(traced ? WAIT_MS : 0);
        consumer.shutdown();
        return taken.get();
    }

    private static void print(int step, TraceContext context, TraceBean bean) {
        JSONObject result = Lines.result(step)
            .fluentPut("type", context.getTraceType().name())
            .fluentPut("msgId", bean.getMsgId())
            .fluentPut("keys", bean.getKeys())
            .fluentPut("cost", context.getCostTime())
            .fluentPut("success", context.isSuccess())
            .fluentPut("again", TraceDataEncoder.encoderFromContextBean(context).getTransData());
        switch (context.getTraceType()) {
            case Pub:
                result.fluentPut("time", context.getTimeStamp()).fluentPut("region", context.getRegionId())
                    .fluentPut("group", context.getGroupName()).fluentPut("topic", bean.getTopic())
                    .fluentPut("tags", bean.getTags()).fluentPut("storeHost", bean.getStoreHost())
                    .fluentPut("bodyLength", bean.getBodyLength()).fluentPut("kind", bean.getMsgType().name())
                    .fluentPut("offsetMsgId", bean.getOffsetMsgId());
                break;
            case SubBefore:
                result.fluentPut("time", context.getTimeStamp()).fluentPut("region", context.getRegionId())
                    .fluentPut("group", context.getGroupName()).fluentPut("requestId", context.getRequestId())
                    .fluentPut("retries", bean.getRetryTimes());
                break;
            default:
                result.fluentPut("requestId", context.getRequestId()).fluentPut("outcome", context.getContextCode());
        }
        Lines.print(result);
    }
}

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * First NAMESRV GROUP: does what an application does that creates its topic at its start.
 * {"broker", "topic"}  creates the topic, starts a push consumer at once, and sends; prints {"made_ms", "first_ms"},
 *                      the times of the call and from the send to the consumer's first message, and what the
 *                      broker reports on both: {"queues", "retries"}, null if this version cannot query them
 */
public final class First {
    private static final long WAIT_S = 60;

    private final DefaultMQAdminExt admin;
    private final String namesrv;
    private final String group;

    private First(DefaultMQAdminExt admin, String namesrv, String group) {
        this.admin = admin;
        this.namesrv = namesrv;
        this.group = group;
    }

    public static void main(String[] args) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(args[0]);
        admin.start();
        Lines.each(new First(admin, args[0], args[1])::run);
        admin.shutdown();
    }

    private void run(int step, JSONObject what) throws Exception {
        String topic = what.getString("topic");
        TopicConfig config = new TopicConfig();
        config.setTopicName(topic);
        config.setReadQueueNums(4);
        config.setWriteQueueNums(4);
        long start = System.nanoTime();
        admin.createAndUpdateTopicConfig(what.getString("broker"), config);
        long made = System.nanoTime();
        CountDownLatch got = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(topic, got);
        DefaultMQProducer producer = new DefaultMQProducer(group + "_" + topic + "_producer");
        producer.setNamesrvAddr(namesrv);
        try {
            producer.start();
            JSONObject sent = new JSONObject().fluentPut("topic", topic).fluentPut("body", "00");
            Lines.patiently(() -> producer.send(Lines.message(sent)));
            long send = System.nanoTime();
            String broker = what.getString("broker");
            boolean came = got.await(WAIT_S, TimeUnit.SECONDS);
            Lines.print(Lines.result(step)
                .fluentPut("queues", queues(broker, topic))
                .fluentPut("retries", retries(broker, group + "_" + topic))
                .fluentPut("made_ms", (made - start) / 1_000_000)
                .fluentPut("first_ms", came ? (System.nanoTime() - send) / 1_000_000 : null));
        } finally {
            producer.shutdown();
            consumer.shutdown();
        }
    }

    private Integer queues(String broker, String topic) throws Exception {
        TopicConfig found = admin.examineTopicConfig(broker, topic);
        return found == null ? null : found.getReadQueueNums();
    }

    private Integer retries(String broker, String group) throws Exception {
        Object found = admin.examineSubscriptionGroupConfig(broker, group); // its class has another package in 5.x
        return found == null ? null : ((JSONObject) JSON.toJSON(found)).getInteger("retryMaxTimes");
    }

    private DefaultMQPushConsumer consumer(String topic, CountDownLatch got) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group + "_" + topic);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}

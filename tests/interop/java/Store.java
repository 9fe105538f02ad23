import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Store BROKER_CONF [halt]: opens the store of a broker.conf with RocketMQ's own DefaultMessageStore, recovers it, does
 * each step, and closes it (with "halt", it exits like a killed process). First line: {"opened": true, "recovered range"}.
 * {"do": "put", "topic", "queue", "body", ...as Produce}   {"do": "putBatch", "topic", "queue", "messages": [...]}
 * {"do": "queue", "topic", "queue", "from": 0}             every message of a queue, then {"end": true, "status"}
 * {"do": "offset", "at": physical offset}                  {"do": "key", "topic", "key"}
 * {"do": "search", "topic", "queue", "time"}               {"do": "range", "topic", "queue"}
 */
public final class Store {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private final DefaultMessageStore store;

    private Store(DefaultMessageStore store) {
        this.store = store;
    }

    public static void main(String[] args) {
        try {
            work(args);
        } catch (Throwable error) { // the store's threads would keep the JVM
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void work(String[] args) throws Exception {
        Store driver = new Store(open(args[0]));
        List<JSONObject> steps = Lines.steps();
        for (int i = 0; i < steps.size(); i++) {
            driver.run(i, steps.get(i));
        }
        if (args.length > 1 && args[1].equals("halt")) {
            driver.store.flush();
            Runtime.getRuntime().halt(0);
        }
        driver.store.shutdown();
        System.exit(0);
    }

    private static DefaultMessageStore open(String file) throws Exception {
        java.util.Properties conf = new java.util.Properties();
        try (java.io.FileReader reader = new java.io.FileReader(file)) {
            conf.load(reader);
        }
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        MixAll.properties2Object(conf, storeConfig);
        MixAll.properties2Object(conf, brokerConfig);
        storeConfig.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(storeConfig, new BrokerStatsManager("interop"),
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> { }, brokerConfig);
        if (!store.load()) { // its start would wait without end
            throw new IllegalStateException("the store was not loaded; see java.log beside " + file);
        }
        store.start();
        Lines.print(Lines.result(-1).fluentPut("opened", true)
            .fluentPut("min", store.getMinPhyOffset()).fluentPut("max", store.getMaxPhyOffset()));
        return store;
    }

    private void run(int step, JSONObject what) throws Exception {
        String topic = what.getString("topic");
        int queue = what.getIntValue("queue");
        switch (what.getString("do")) {
            case "put":
                print(step, store.putMessage(inner(what)));
                awaitDispatch();
                return;
            case "putBatch":
                print(step, store.putMessages(batch(what)));
                awaitDispatch();
                return;
            case "queue":
                queue(step, topic, queue, what.getLongValue("from"));
                return;
            case "offset":
                one(step, store.lookMessageByOffset(what.getLongValue("at")));
                return;
            case "key":
                key(step, topic, what.getString("key"));
                return;
            case "search":
                Lines.print(Lines.result(step)
                    .fluentPut("offset", store.getOffsetInQueueByTime(topic, queue, what.getLongValue("time"))));
                return;
            case "range":
                Lines.print(Lines.result(step).fluentPut("min", store.getMinOffsetInQueue(topic, queue))
                    .fluentPut("max", store.getMaxOffsetInQueue(topic, queue)));
                return;
            default:
                throw new IllegalArgumentException(what.toJSONString());
        }
    }

    private void awaitDispatch() throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    private static MessageExtBrokerInner inner(JSONObject what) {
        Message message = Lines.message(what);
        MessageClientIDSetter.setUniqID(message);
        MessageExtBrokerInner inner = new MessageExtBrokerInner();
        inner.setTopic(message.getTopic());
        inner.setQueueId(what.getIntValue("queue"));
        inner.setFlag(message.getFlag());
        inner.setBody(message.getBody());
        inner.setBornTimestamp(System.currentTimeMillis());
        inner.setBornHost(HOST);
        inner.setStoreHost(HOST);
        MessageAccessor.setProperties(inner, message.getProperties());
        inner.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        inner.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
        return inner;
    }

    private static MessageExtBatch batch(JSONObject what) {
        List<Message> messages = new ArrayList<>();
        for (Object one : what.getJSONArray("messages")) {
            Message message = Lines.message((JSONObject) one);
            MessageClientIDSetter.setUniqID(message);
            messages.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(what.getString("topic"));
        batch.setQueueId(what.getIntValue("queue"));
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBornHost(HOST);
        batch.setStoreHost(HOST);
        batch.setBody(MessageDecoder.encodeMessages(messages));
        return batch;
    }

    private static void print(int step, PutMessageResult result) {
        JSONObject printed = Lines.result(step).fluentPut("status", result.getPutMessageStatus().name());
        if (result.getAppendMessageResult() != null) {
            printed.fluentPut("physicalOffset", result.getAppendMessageResult().getWroteOffset())
                .fluentPut("size", result.getAppendMessageResult().getWroteBytes())
                .fluentPut("queueOffset", result.getAppendMessageResult().getLogicsOffset())
                .fluentPut("offsetMsgId", result.getAppendMessageResult().getMsgId());
        }
        Lines.print(printed);
    }

    private void queue(int step, String topic, int queue, long from) {
        long offset = from;
        GetMessageResult result = store.getMessage("interop", topic, queue, offset, 32, null);
        while (result.getStatus() == GetMessageStatus.FOUND) {
            for (ByteBuffer record : result.getMessageBufferList()) {
                one(step, MessageDecoder.decode(record));
            }
            offset = result.getNextBeginOffset();
            result.release();
            result = store.getMessage("interop", topic, queue, offset, 32, null);
        }
        Lines.print(Lines.result(step).fluentPut("end", true).fluentPut("status", result.getStatus().name())
            .fluentPut("next", result.getNextBeginOffset()));
    }

    private void key(int step, String topic, String key) {
        QueryMessageResult found = store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
        for (ByteBuffer record : found.getMessageBufferList()) {
            one(step, MessageDecoder.decode(record));
        }
        found.release();
        Lines.print(Lines.result(step).fluentPut("end", true));
    }

    private static void one(int step, MessageExt message) {
        Lines.print(message == null ? Lines.result(step).fluentPut("found", false) : Lines.received(step, message));
    }
}

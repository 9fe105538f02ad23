import static java.nio.charset.StandardCharsets.UTF_8;

import com.alibaba.fastjson.JSONObject;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Features NAMESRV BROKER [CASE...]: features of RocketMQ 5's client, several at a time; all of them without names.
 * Prints a line for each case: {"case", "passed", "error"}. BROKER: the broker's address.
 */
public final class Features {
    private static final int AT_A_TIME = 12;
    private static final long WAIT_S = 90;

    /** One feature. Its argument is a name that no other case uses: of its topic, groups and clients. */
    interface Feature {
        void run(String name) throws Exception;
    }

    private final String namesrv;
    private final String broker;
    private final DefaultMQAdminExt admin;
    private final Map<String, Feature> features = new LinkedHashMap<>();
    private final Map<String, List<AutoCloseable>> opened = new ConcurrentHashMap<>();

    private Features(String namesrv, String broker) throws Exception {
        this.namesrv = namesrv;
        this.broker = broker;
        admin = new DefaultMQAdminExt(Lines.hook(), 60_000);
        configure(admin, "admin");
        admin.start();
        sends();
        timers();
        codecs();
        deferred();
        pushConsumers();
        pullConsumers();
        topicsAndClients();
    }

    public static void main(String[] args) throws Exception {
        Features driver = new Features(args[0], args[1]);
        List<String> asked = Arrays.asList(args).subList(2, args.length);
        ExecutorService threads = Executors.newFixedThreadPool(AT_A_TIME);
        driver.features.forEach((name, feature) -> {
            if (asked.isEmpty() || asked.contains(name)) {
                threads.execute(() -> driver.run(name, feature));
            }
        });
        threads.shutdown();
        threads.awaitTermination(1, TimeUnit.HOURS);
        System.out.flush();
        System.exit(0);
    }

    private void run(String name, Feature feature) {
        JSONObject result = new JSONObject(true).fluentPut("case", name);
        try {
            feature.run(topicOf(name));
            result.put("passed", true);
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            result.fluentPut("passed", false).fluentPut("error", trace.toString());
        }
        for (AutoCloseable client : opened.getOrDefault(topicOf(name), Collections.emptyList())) {
            try {
                client.close();
            } catch (Exception error) {
                result.put("closing", error.toString());
            }
        }
        Lines.print(result);
    }

    // -- sends ------------------------------------------------------------------------------------

    private void sends() {
        features.put("sync send", name -> {
            topic(name, 4);
            isStored(producer(name).send(message(name, "one")));
            receives(name, "one");
        });
        features.put("async send", name -> {
            topic(name, 4);
            DefaultMQProducer producer = producer(name);
            List<CompletableFuture<SendResult>> results = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                Future result = new Future();
                producer.send(message(name, "m" + i), result);
                results.add(result.done);
            }
            for (CompletableFuture<SendResult> result : results) {
                isStored(result.get(WAIT_S, TimeUnit.SECONDS));
            }
            receives(name, numbered(20));
        });
        features.put("oneway send", name -> {
            topic(name, 4);
            DefaultMQProducer producer = producer(name);
            producer.sendOneway(message(name, "m0"));
            producer.sendOneway(message(name, "m1"), (queues, m, arg) -> queues.get((Integer) arg), 1);
            receives(name, numbered(2));
        });
        features.put("send to a queue and with a selector", name -> {
            topic(name, 4);
            DefaultMQProducer producer = producer(name);
            MessageQueue queue = producer.fetchPublishMessageQueues(name).get(2);
            same(queue, isStored(producer.send(message(name, "m0"), queue)).getMessageQueue());
            SendResult chosen = producer.send(message(name, "m1"), (queues, m, arg) -> queues.get((Integer) arg), 3);
            same(3, isStored(chosen).getMessageQueue().getQueueId());
            receives(name, numbered(2));
        });
        features.put("batch", name -> {
            topic(name, 4);
            DefaultMQProducer producer = producer(name);
            isStored(producer.send(Arrays.asList(message(name, "m0"), message(name, "m1"))));
            Future result = new Future();
            producer.send(Arrays.asList(message(name, "m2"), message(name, "m3"), message(name, "m4")), result);
            SendResult sent = isStored(result.done.get(WAIT_S, TimeUnit.SECONDS));
            same(3, sent.getMsgId().split(",").length);
            receives(name, numbered(5));
        });
        features.put("auto-batch", name -> {
            topic(name, 4);
            DefaultMQProducer producer = producer(name, p -> p.setAutoBatch(true));
            producer.batchMaxDelayMs(30);
            List<CompletableFuture<SendResult>> results = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                Message message = message(name, "m" + i);
                message.setKeys("k" + i);
                Future result = new Future();
                producer.send(message, result);
                results.add(result.done);
            }
            Set<String> ids = new TreeSet<>();
            for (CompletableFuture<SendResult> result : results) {
                ids.add(isStored(result.get(WAIT_S, TimeUnit.SECONDS)).getMsgId());
            }
            Received received = receives(name, numbered(100));
            Set<String> found = new TreeSet<>();
            received.messages.forEach(message -> found.add(message.getMsgId()));
            same(ids, found);
        });
        features.put("auto-batch of sync sends", name -> {
            topic(name, 1);
            DefaultMQProducer producer = producer(name, p -> p.setAutoBatch(true));
            isStored(producer.send(message(name, "m0")));
            isStored(producer.send(message(name, "m1")));
            receives(name, numbered(2));
        });
        features.put("properties, tags, keys and flag", name -> {
            topic(name, 1);
            Message sent = message(name, "one");
            sent.setTags("blue");
            sent.setKeys(Arrays.asList("k1", "k2"));
            sent.setFlag(17);
            sent.putUserProperty("ünicode", "地球 🚀");
            SendResult result = isStored(producer(name).send(sent));
            MessageExt found = receives(name, "one").messages.peek();
            same("blue", found.getTags());
            same("k1 k2", found.getKeys());
            same(17, found.getFlag());
            same("地球 🚀", found.getUserProperty("ünicode"));
            same(result.getMsgId(), found.getMsgId());
        });
        features.put("look-ups of a message", name -> {
            topic(name, 1);
            DefaultMQProducer producer = producer(name);
            Message sent = message(name, "one");
            sent.setKeys("key-" + name.hashCode());
            SendResult result = isStored(producer.send(sent));
            same("one", text(producer.viewMessage(name, result.getOffsetMsgId())));
            await("the key", () -> quietly(() -> producer.queryMessage(
                name, sent.getKeys(), 10, 0, Long.MAX_VALUE).getMessageList().size() == 1));
            await("the unique id", () -> quietly(() -> text(producer.viewMessage(name, result.getMsgId())).equals("one")));
        });
        features.put("a message of 4 MB, and one that is too long", name -> {
            topic(name, 1);
            byte[] long4 = new byte[(4 << 20) - 1000];
            DefaultMQProducer producer = producer(name, p -> {
                p.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
                p.setMaxMessageSize(8 << 20);
            });
            isStored(producer.send(new Message(name, long4)));
            isRefused(() -> producer.send(new Message(name, new byte[5 << 20])));
        });
    }

    // -- timers -----------------------------------------------------------------------------------

    private interface Timing {
        void set(Message message, long dueMs);
    }

    private void timers() {
        features.put("timer: delay in ms", timed((m, due) -> m.setDelayTimeMs(due - now())));
        features.put("timer: delay in s", timed((m, due) -> m.setDelayTimeSec(3)));
        features.put("timer: time of delivery", timed((m, due) -> m.setDeliverTimeMs(due)));
        features.put("timer: a time in the past", name -> {
            topic(name, 1);
            Message message = message(name, "one");
            message.setDeliverTimeMs(now() - 60_000);
            isStored(producer(name).send(message));
            receives(name, "one");
        });
        features.put("timer: too far ahead", name -> {
            topic(name, 1);
            Message message = message(name, "one");
            message.setDelayTimeSec(4 * 86_400);
            isRefused(() -> producer(name).send(message));
        });
        features.put("delay level", name -> {
            topic(name, 1);
            Message message = message(name, "one");
            message.setDelayTimeLevel(1);
            long before = now();
            isStored(producer(name).send(message));
            MessageExt found = receives(name, "one").messages.peek();
            isTrue(found.getStoreTimestamp() - before >= 1000, "early");
        });
        features.put("recall", name -> {
            topic(name, 1);
            DefaultMQProducer producer = producer(name);
            Message kept = message(name, "kept");
            Message recalled = message(name, "recalled");
            long due = now() + 6000;
            kept.setDeliverTimeMs(due);
            recalled.setDeliverTimeMs(due);
            isStored(producer.send(kept));
            SendResult sent = isStored(producer.send(recalled));
            isTrue(sent.getRecallHandle() != null, "no handle");
            same(sent.getMsgId(), producer.recallMessage(name, sent.getRecallHandle()));
            Message last = message(name, "last");
            last.setDeliverTimeMs(due + 1500);
            isStored(producer.send(last));
            receives(name, "kept", "last");
        });
        features.put("recall with a forged handle", name -> {
            topic(name, 1);
            isRefused(() -> producer(name).recallMessage(name, "forged"));
        });
    }

    private Feature timed(Timing timing) {
        return name -> {
            topic(name, 1);
            DefaultMQProducer producer = producer(name);
            Message message = message(name, "one");
            long due = now() + 3000;
            timing.set(message, due);
            isStored(producer.send(message));
            MessageExt found = receives(name, "one").messages.peek();
            isTrue(found.getStoreTimestamp() >= due - 1, "early by " + (due - found.getStoreTimestamp()));
        };
    }

    // -- codecs -----------------------------------------------------------------------------------

    private void codecs() {
        for (CompressionType type : CompressionType.values()) {
            features.put("compressed body: " + type, name -> {
                topic(name, 1);
                String body = String.join(" ", Collections.nCopies(3000, "rocket"));
                DefaultMQProducer producer = producer(name, p -> p.setCompressType(type));
                isStored(producer.send(message(name, body)));
                MessageExt found = receives(name, body).messages.peek();
                isTrue(found.getStoreSize() < body.length() / 2, "not compressed");
            });
        }
    }

    // -- transactions and requests ----------------------------------------------------------------

    private void deferred() {
        features.put("transactions: commit, rollback and check", name -> {
            topic(name, 4);
            AtomicInteger checks = new AtomicInteger();
            TransactionMQProducer producer = new TransactionMQProducer("p_" + name, Lines.hook());
            producer.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                    return (LocalTransactionState) state;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    checks.incrementAndGet();
                    // Java's broker may also check what has been rolled back just now.
                    return text(message).equals("ROLLBACK_MESSAGE")
                        ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            start(name, producer);
            for (LocalTransactionState state : LocalTransactionState.values()) {
                same(state, producer.sendMessageInTransaction(message(name, state.name()), state).getLocalTransactionState());
            }
            receives(name, "COMMIT_MESSAGE", "UNKNOW");
            isTrue(checks.get() >= 1, "no check");
        });
        features.put("request and reply", name -> {
            topic(name, 4);
            DefaultMQProducer producer = replier(name);
            // Clients of 5.x report a timeout at once if the response to the send comes before the reply.
            await("a reply", () -> quietly(() -> new String(
                producer.request(message(name, "one"), WAIT_S * 1000).getBody(), UTF_8).equals("re: one")));
        });
        features.put("request with a callback", name -> {
            topic(name, 4);
            DefaultMQProducer producer = replier(name);
            CompletableFuture<Message> reply = new CompletableFuture<>();
            // Without a queue or a selector, clients of 5.x call back with null when the request is sent.
            MessageQueue queue = producer.fetchPublishMessageQueues(name).get(1);
            producer.request(message(name, "one"), queue, new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    reply.complete(message);
                }

                @Override
                public void onException(Throwable error) {
                    reply.completeExceptionally(error);
                }
            }, WAIT_S * 1000);
            same("re: one", new String(reply.get(WAIT_S, TimeUnit.SECONDS).getBody(), UTF_8));
        });
    }

    /** Replies to each request of a topic by "re: " and its body; returns a producer for requests. */
    private DefaultMQProducer replier(String name) throws Exception {
        DefaultMQProducer producer = producer(name);
        DefaultMQPushConsumer consumer = pushConsumer(name, "replies");
        consumer.subscribe(name, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt request : messages) {
                try {
                    producer.send(MessageUtil.createReplyMessage(request, ("re: " + text(request)).getBytes(UTF_8)));
                } catch (Exception error) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(name, consumer);
        return producer;
    }

    // -- push consumers ---------------------------------------------------------------------------

    private void pushConsumers() {
        features.put("push: tags", name -> {
            topic(name, 4);
            DefaultMQProducer producer = producer(name);
            for (String tag : Arrays.asList("A", "B", "C")) {
                Message message = message(name, tag);
                message.setTags(tag);
                isStored(producer.send(message));
            }
            Received received = new Received();
            DefaultMQPushConsumer consumer = pushConsumer(name, "tags");
            consumer.subscribe(name, "A || C");
            consumer.registerMessageListener(received);
            start(name, consumer);
            received.await("A", "C");
        });
        features.put("push: SQL92", name -> {
            topic(name, 4);
            Received received = new Received();
            DefaultMQPushConsumer consumer = pushConsumer(name, "sql");
            consumer.subscribe(name, MessageSelector.bySql("(number BETWEEN 2 AND 4) AND color = 'red'"));
            consumer.registerMessageListener(received);
            start(name, consumer);
            DefaultMQProducer producer = producer(name);
            for (int i = 0; i < 8; i++) {
                Message message = message(name, "m" + i);
                message.putUserProperty("number", String.valueOf(i));
                message.putUserProperty("color", i % 2 == 0 ? "red" : "blue");
                isStored(producer.send(message));
            }
            received.await("m2", "m4");
        });
        features.put("push: orderly", name -> {
            topic(name, 2);
            DefaultMQProducer producer = producer(name);
            Map<Integer, List<Integer>> byQueue = new ConcurrentHashMap<>();
            AtomicInteger failures = new AtomicInteger();
            CountDownLatch left = new CountDownLatch(60);
            DefaultMQPushConsumer consumer = pushConsumer(name, "orderly");
            consumer.setSuspendCurrentQueueTimeMillis(100);
            consumer.subscribe(name, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    if (failures.getAndIncrement() == 5) {
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    byQueue.computeIfAbsent(message.getQueueId(), queue -> Collections.synchronizedList(new ArrayList<>()))
                        .add(Integer.parseInt(text(message)));
                    left.countDown();
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            start(name, consumer);
            for (int i = 0; i < 60; i++) {
                isStored(producer.send(message(name, String.valueOf(i)), (queues, m, arg) -> queues.get((Integer) arg % 2), i));
            }
            isTrue(left.await(WAIT_S, TimeUnit.SECONDS), "not all messages came: " + left.getCount());
            for (int queue = 0; queue < 2; queue++) {
                List<Integer> wanted = new ArrayList<>();
                for (int i = queue; i < 60; i += 2) {
                    wanted.add(i);
                }
                same(wanted, byQueue.get(queue));
            }
        });
        features.put("push: broadcast", name -> {
            topic(name, 4);
            List<Received> all = Arrays.asList(new Received(), new Received());
            for (int i = 0; i < 2; i++) {
                DefaultMQPushConsumer consumer = pushConsumer(name, "broadcast");
                consumer.setInstanceName(name + i);
                consumer.setMessageModel(MessageModel.BROADCASTING);
                consumer.subscribe(name, "*");
                consumer.registerMessageListener(all.get(i));
                start(name, consumer);
            }
            DefaultMQProducer producer = producer(name);
            for (int i = 0; i < 10; i++) {
                isStored(producer.send(message(name, "m" + i)));
            }
            for (Received received : all) {
                received.await(numbered(10));
            }
        });
        features.put("push: two members of a group", name -> {
            topic(name, 4);
            Received received = new Received();
            for (int i = 0; i < 2; i++) {
                DefaultMQPushConsumer consumer = pushConsumer(name, "members");
                consumer.setInstanceName(name + i);
                consumer.subscribe(name, "*");
                consumer.registerMessageListener(received);
                start(name, consumer);
            }
            await("two members", () -> quietly(() -> admin.examineConsumerConnectionInfo("members_" + name)
                .getConnectionSet().size() == 2));
            DefaultMQProducer producer = producer(name);
            for (int i = 0; i < 20; i++) {
                isStored(producer.send(message(name, "m" + i)));
            }
            received.await(numbered(20));
        });
        features.put("push: retry", name -> {
            topic(name, 1);
            Received received = new Received();
            List<String> times = Collections.synchronizedList(new ArrayList<>());
            DefaultMQPushConsumer consumer = pushConsumer(name, "retry");
            consumer.subscribe(name, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                times.add(messages.get(0).getReconsumeTimes() + messages.get(0).getTopic());
                context.setDelayLevelWhenNextConsume(1);
                return messages.get(0).getReconsumeTimes() < 2
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : received.consumeMessage(messages, context);
            });
            start(name, consumer);
            isStored(producer(name).send(message(name, "one")));
            received.await("one");
            same(Arrays.asList("0" + name, "1" + name, "2" + name), times);
        });
        features.put("push: dead letters", name -> {
            topic(name, 1);
            DefaultMQPushConsumer consumer = pushConsumer(name, "dead");
            consumer.setMaxReconsumeTimes(1);
            consumer.subscribe(name, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            start(name, consumer);
            isStored(producer(name).send(message(name, "one")));
            String dead = "%DLQ%dead_" + name;
            await("a dead letter", () -> quietly(() -> admin.examineTopicStats(dead).getOffsetTable().values().stream()
                .mapToLong(offset -> offset.getMaxOffset()).sum() == 1));
        });
        features.put("push: from a time", name -> {
            topic(name, 1);
            Received received = new Received();
            isStored(producer(name).send(message(name, "one")));
            DefaultMQPushConsumer consumer = pushConsumer(name, "time");
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
            consumer.subscribe(name, "*");
            consumer.registerMessageListener(received);
            start(name, consumer);
            received.await("one");
        });
        features.put("push: goes on where the group was", name -> {
            topic(name, 1);
            DefaultMQProducer producer = producer(name);
            for (String body : Arrays.asList("first", "second")) {
                isStored(producer.send(message(name, body)));
                Received received = new Received();
                DefaultMQPushConsumer consumer = pushConsumer(name, "again");
                consumer.subscribe(name, "*");
                consumer.registerMessageListener(received);
                consumer.start();
                received.await(body);
                consumer.shutdown();
            }
        });
    }

    // -- pull consumers ---------------------------------------------------------------------------

    private void pullConsumers() {
        features.put("lite pull: subscribe", name -> {
            topic(name, 4);
            DefaultLitePullConsumer consumer = litePull(name, "subscribe");
            consumer.subscribe(name, "*");
            start(name, consumer);
            DefaultMQProducer producer = producer(name);
            for (int i = 0; i < 20; i++) {
                isStored(producer.send(message(name, "m" + i)));
            }
            polls(consumer, numbered(20));
            consumer.commit();
        });
        features.put("lite pull: assign, seek and commit", name -> {
            topic(name, 2);
            DefaultMQProducer producer = producer(name);
            for (int i = 0; i < 10; i++) {
                isStored(producer.send(message(name, "m" + i)));
            }
            DefaultLitePullConsumer consumer = litePull(name, "assign");
            consumer.setAutoCommit(false);
            start(name, consumer);
            Collection<MessageQueue> queues = Lines.patiently(() -> consumer.fetchMessageQueues(name));
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                await("a seek", () -> quietly(() -> {
                    consumer.seekToBegin(queue);
                    return true;
                }));
            }
            polls(consumer, numbered(10));
            consumer.commit();
            await("the commits", () -> quietly(() -> {
                long total = 0;
                for (MessageQueue queue : queues) {
                    total += Math.max(consumer.committed(queue), 0);
                }
                return total == 10;
            }));
            for (MessageQueue queue : queues) {
                consumer.seekToBegin(queue);
            }
            polls(consumer, numbered(10));
        });
        features.put("pull: statuses and offsets", name -> {
            topic(name, 1);
            isStored(producer(name).send(message(name, "one")));
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("pull_" + name, Lines.hook());
            start(name, consumer);
            MessageQueue queue = Lines.patiently(() -> consumer.fetchSubscribeMessageQueues(name)).iterator().next();
            await("the message", () -> quietly(() -> consumer.maxOffset(queue) == 1));
            same(0L, consumer.minOffset(queue));
            same(PullStatus.FOUND, consumer.pull(queue, "*", 0, 32).getPullStatus());
            same(PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 1, 32).getPullStatus());
            same(PullStatus.OFFSET_ILLEGAL, consumer.pull(queue, "*", 10, 32).getPullStatus());
            same(PullStatus.NO_MATCHED_MSG, consumer.pull(queue, "other", 0, 32).getPullStatus());
            same(0L, consumer.searchOffset(queue, 1));
            consumer.updateConsumeOffset(queue, 1);
        });
    }

    // -- topics and settings of clients -------------------------------------------------------------

    private void topicsAndClients() {
        for (TopicMessageType type : TopicMessageType.values()) {
            if (Arrays.asList("NORMAL", "FIFO", "DELAY", "TRANSACTION").contains(type.name())) {
                features.put("topic of type " + type, name -> {
                    topic(name, 2, Collections.singletonMap("+message.type", type.name()));
                    TopicConfig found = admin.examineTopicConfig(broker, name);
                    same(type.name(), found.getAttributes().get("message.type"));
                    isStored(producer(name).send(message(name, "plain")));
                    receives(name, "plain");
                });
            }
        }
        features.put("topic of an unknown type", name -> isRefused(
            () -> topic(name, 2, Collections.singletonMap("+message.type", "BLUE"))));
        features.put("trace", name -> {
            topic(name, 1);
            DefaultMQProducer producer = new DefaultMQProducer("p_" + name, Lines.hook(), true, null);
            start(name, producer);
            SendResult sent = isStored(producer.send(message(name, "one")));
            await("a trace", () -> quietly(() -> admin.queryMessage(
                "RMQ_SYS_TRACE_TOPIC", sent.getMsgId(), 10, 0, Long.MAX_VALUE).getMessageList().size() > 0));
        });
        features.put("namespace", name -> {
            topic("space%" + name, 1);
            Received received = new Received();
            DefaultMQPushConsumer consumer = pushConsumer(name, "space");
            consumer.setNamespace("space");
            consumer.subscribe(name, "*");
            consumer.registerMessageListener(received);
            start(name, consumer);
            isStored(producer(name, p -> p.setNamespace("space")).send(message(name, "one")));
            received.await("one");
            same(name, received.messages.peek().getTopic());
        });
        features.put("namespace v2", name -> {
            topic(name, 1);
            Received received = new Received();
            DefaultMQPushConsumer consumer = pushConsumer(name, "space2");
            consumer.setNamespaceV2("space2");
            consumer.subscribe(name, "*");
            consumer.registerMessageListener(received);
            start(name, consumer);
            isStored(producer(name, p -> p.setNamespaceV2("space2")).send(message(name, "one")));
            received.await("one");
        });
        features.put("heartbeat v2", name -> {
            topic(name, 4);
            Received received = new Received();
            DefaultMQPushConsumer consumer = pushConsumer(name, "beat");
            consumer.setUseHeartbeatV2(true);
            consumer.setHeartbeatBrokerInterval(1000);
            consumer.subscribe(name, "*");
            consumer.registerMessageListener(received);
            start(name, consumer);
            DefaultMQProducer producer = producer(name, p -> p.setUseHeartbeatV2(true));
            isStored(producer.send(message(name, "m0")));
            received.await("m0");
            Set<String> topics = new TreeSet<>();
            consumer.subscribe("other_" + name, "*"); // its next heartbeat is a full one
            await("the new subscription", () -> quietly(() -> {
                topics.addAll(admin.examineConsumerConnectionInfo("beat_" + name).getSubscriptionTable().keySet());
                return topics.contains("other_" + name);
            }));
            isStored(producer.send(message(name, "m1")));
            received.await(numbered(2));
        });
        features.put("heartbeats at the same time", name -> {
            topic(name, 1);
            Received received = new Received();
            DefaultMQPushConsumer consumer = pushConsumer(name, "beats");
            set(consumer, "setEnableConcurrentHeartbeat");
            consumer.subscribe(name, "*");
            consumer.registerMessageListener(received);
            start(name, consumer);
            isStored(producer(name).send(message(name, "one")));
            received.await("one");
        });
        features.put("stream requests", name -> {
            topic(name, 1);
            Received received = new Received();
            DefaultMQPushConsumer consumer = pushConsumer(name, "stream");
            consumer.setEnableStreamRequestType(true);
            consumer.subscribe(name, "*");
            consumer.registerMessageListener(received);
            start(name, consumer);
            isStored(producer(name, p -> p.setEnableStreamRequestType(true)).send(message(name, "one")));
            received.await("one");
        });
        features.put("fault detection", name -> {
            topic(name, 4);
            DefaultMQProducer producer = producer(name, p -> {
                p.setSendLatencyEnable(true);
                p.setStartDetectorEnable(true);
                p.setDetectInterval(500);
            });
            isStored(producer.send(message(name, "one")));
            receives(name, "one");
        });
        features.put("a topic made by its first message", name -> {
            isStored(Lines.patiently(() -> producer(name).send(message(name, "one"))));
            receives(name, "one");
        });
        features.put("the progress of a group", name -> {
            topic(name, 1);
            isStored(producer(name).send(message(name, "one")));
            receives(name, "one");
            await("the offsets", () -> quietly(() -> admin.examineConsumeStats("reader_" + name, name)
                .computeTotalDiff() == 0));
        });
    }

    /** Calls a setter with true that only newer versions have. */
    private static void set(ClientConfig client, String setter) throws Exception {
        for (java.lang.reflect.Method method : client.getClass().getMethods()) {
            if (method.getName().equals(setter)) {
                method.invoke(client, true);
            }
        }
    }

    // -- clients ----------------------------------------------------------------------------------

    private interface Setting {
        void set(DefaultMQProducer producer);
    }

    private DefaultMQProducer producer(String name) throws Exception {
        return producer(name, producer -> { });
    }

    private DefaultMQProducer producer(String name, Setting setting) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("p_" + name, Lines.hook());
        setting.set(producer);
        start(name, producer);
        return producer;
    }

    private DefaultMQPushConsumer pushConsumer(String name, String prefix) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(prefix + "_" + name);
        if (Lines.hook() != null) {
            consumer = new DefaultMQPushConsumer(prefix + "_" + name, Lines.hook());
        }
        configure(consumer, name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeTimestamp("20200101000000");
        return consumer;
    }

    private DefaultLitePullConsumer litePull(String name, String prefix) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(prefix + "_" + name, Lines.hook());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private void configure(ClientConfig client, String name) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(name);
        client.setMqClientApiTimeout(30_000);
        client.setPollNameServerInterval(1000);
    }

    private void start(String name, DefaultMQProducer producer) throws Exception {
        configure(producer, name + "-producer");
        producer.setSendMsgTimeout(30_000);
        producer.start();
        closes(name, producer::shutdown);
    }

    private void start(String name, DefaultMQPushConsumer consumer) throws Exception {
        consumer.start();
        closes(name, consumer::shutdown);
    }

    private void start(String name, DefaultMQPullConsumer consumer) throws Exception {
        configure(consumer, name);
        consumer.start();
        closes(name, consumer::shutdown);
    }

    private void start(String name, DefaultLitePullConsumer consumer) throws Exception {
        configure(consumer, name);
        consumer.start();
        closes(name, consumer::shutdown);
    }

    private void closes(String name, AutoCloseable client) {
        opened.computeIfAbsent(name, key -> Collections.synchronizedList(new ArrayList<>())).add(client);
    }

    private void topic(String topic, int queues) throws Exception {
        topic(topic, queues, Collections.emptyMap());
    }

    private void topic(String topic, int queues, Map<String, String> attributes) throws Exception {
        TopicConfig config = new TopicConfig(topic, queues, queues);
        config.setAttributes(new HashMap<>(attributes));
        admin.createAndUpdateTopicConfig(broker, config);
        await("the route of " + topic, () -> quietly(() -> admin.examineTopicRouteInfo(topic) != null));
    }

    // -- what is expected -------------------------------------------------------------------------

    /** Messages as a listener gets them, also those that come twice. */
    private static final class Received implements MessageListenerConcurrently {
        final ConcurrentLinkedQueue<MessageExt> messages = new ConcurrentLinkedQueue<>();

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(
            List<MessageExt> found, org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext context) {
            messages.addAll(found);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        /** Waits for these bodies; others may not come. */
        void await(String... bodies) throws Exception {
            Set<String> wanted = new TreeSet<>(Arrays.asList(bodies));
            try {
                Features.await("messages", () -> bodies().containsAll(wanted));
            } catch (IllegalStateException late) {
                throw new IllegalStateException("received " + bodies() + ", expected " + wanted);
            }
            same(wanted, bodies());
        }

        private Set<String> bodies() {
            Set<String> bodies = new TreeSet<>();
            messages.forEach(message -> bodies.add(text(message)));
            return bodies;
        }
    }

    /** Reads a topic from its start with a new group until it has these bodies. */
    private Received receives(String name, String... bodies) throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = pushConsumer(name, "reader");
        consumer.subscribe(name, "*");
        consumer.registerMessageListener(received);
        start(name, consumer);
        received.await(bodies);
        return received;
    }

    private static void polls(DefaultLitePullConsumer consumer, String... bodies) {
        Set<String> wanted = new TreeSet<>(Arrays.asList(bodies));
        Set<String> found = new TreeSet<>();
        long until = System.nanoTime() + WAIT_S * 1_000_000_000L;
        while (!found.containsAll(wanted)) {
            isTrue(System.nanoTime() < until, "polled " + found + ", expected " + wanted);
            for (MessageExt message : consumer.poll(500)) {
                found.add(text(message));
            }
        }
        same(wanted, found);
    }

    private static final class Future implements SendCallback {
        final CompletableFuture<SendResult> done = new CompletableFuture<>();

        @Override
        public void onSuccess(SendResult result) {
            done.complete(result);
        }

        @Override
        public void onException(Throwable error) {
            done.completeExceptionally(error);
        }
    }

    private static SendResult isStored(SendResult result) {
        same(SendStatus.SEND_OK, result.getSendStatus());
        return result;
    }

    /** Expects an error of the broker, or of the client that checks the same, and no timeout. */
    private static void isRefused(Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (MQBrokerException | org.apache.rocketmq.client.exception.MQClientException expected) {
            return;
        }
        throw new IllegalStateException("it was not refused");
    }

    private void isRefused(Refused call) throws Exception {
        isRefused(() -> {
            call.run();
            return null;
        });
    }

    private interface Refused {
        void run() throws Exception;
    }

    private static void same(Object expected, Object found) {
        isTrue(expected.equals(found), "expected " + expected + ", found " + found);
    }

    private static void isTrue(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    private static void await(String what, BooleanSupplier holds) throws Exception {
        long until = System.nanoTime() + WAIT_S * 1_000_000_000L;
        while (!holds.getAsBoolean()) {
            isTrue(System.nanoTime() < until, "waited in vain for " + what);
            Thread.sleep(100);
        }
    }

    /** False if the call fails: it is tried again. */
    private static boolean quietly(Callable<Boolean> call) {
        try {
            return call.call();
        } catch (Exception error) {
            return false;
        }
    }

    private static String[] numbered(int count) {
        String[] bodies = new String[count];
        for (int i = 0; i < count; i++) {
            bodies[i] = "m" + i;
        }
        return bodies;
    }

    private static long now() {
        return System.currentTimeMillis();
    }

    private static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(UTF_8));
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), UTF_8);
    }

    private static String topicOf(String feature) {
        return feature.replaceAll("[^A-Za-z0-9]+", "-");
    }
}

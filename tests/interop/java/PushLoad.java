import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * PushLoad: consumes on request with DefaultMQPushConsumer as it comes, in one warm process.
 * A line in: {"do": "drain" or "latency", "namesrv", "topic", "group", "messages"}; a line out: {"sent": messages
 * consumed, "failed": 0, "seconds": from the first to the last, "p50_us", "p99_us", "max_us": from the time in the body
 * (ns since 1970) to the handler, for "latency"}. For "latency", messages of the first two seconds are not counted.
 */
public final class PushLoad {
    private static final AtomicInteger NUMBER = new AtomicInteger();

    private PushLoad() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Lines.print(run(JSON.parseObject(line)));
        }
        System.exit(0);
    }

    private static JSONObject run(JSONObject what) throws Exception {
        boolean timed = what.getString("do").equals("latency");
        int wanted = what.getIntValue("messages");
        long[] micros = new long[timed ? wanted : 0];
        AtomicInteger count = new AtomicInteger();
        AtomicLong first = new AtomicLong();
        AtomicLong since = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(what.getString("group"));
        consumer.setInstanceName("load" + NUMBER.incrementAndGet());
        consumer.setNamesrvAddr(what.getString("namesrv"));
        consumer.setConsumeFromWhere(timed ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(what.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (first.compareAndSet(0, System.nanoTime())) {
                since.set(now() + 2_000_000_000L);
            }
            for (MessageExt message : messages) {
                long sent = timed ? sent(message) : 0;
                if (timed && (since.get() == 0 || sent < since.get())) {
                    continue;
                }
                int at = count.getAndIncrement();
                if (timed && at < wanted) {
                    micros[at] = (now() - sent) / 1000;
                }
                if (at + 1 == wanted) {
                    last.set(System.nanoTime());
                    done.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
        consumer.shutdown();
        Arrays.sort(micros);
        return new JSONObject(true).fluentPut("sent", wanted).fluentPut("failed", 0)
            .fluentPut("seconds", (last.get() - first.get()) / 1e9)
            .fluentPut("p50_us", at(micros, 0.5)).fluentPut("p99_us", at(micros, 0.99)).fluentPut("max_us", at(micros, 1));
    }

    private static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    private static long sent(MessageExt message) {
        return Long.parseLong(new String(message.getBody(), StandardCharsets.US_ASCII).trim());
    }

    private static long at(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (sorted.length * share))];
    }
}

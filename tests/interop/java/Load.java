import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Load: sends for a fixed time on request, the way org.apache.rocketmq.example.benchmark.Producer does (synchronous
 * sends in a loop, N threads sharing one producer, no compression), but for as long as asked and in one warm process.
 * A line in: {"namesrv", "topic", "threads", "seconds", "bytes", "wait"?, "rate"?}; a line out: {"sent", "failed",
 * "seconds", "p50_us", "p99_us", "max_us"}. One producer is kept for each name server. With "wait" false, messages
 * have the property WAIT=false: the broker responds before flush and replication. With "rate", the threads send that
 * many messages a second, each at its time. A message that is late, since its thread still waits for the last
 * response, has the latency from its own time on.
 */
public final class Load {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    private Load() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Lines.print(run(JSON.parseObject(line)));
        }
        System.exit(0);
    }

    private static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(namesrv);
        if (producer == null) {
            producer = new DefaultMQProducer("load_producer");
            producer.setInstanceName(namesrv.replace(':', '_'));
            producer.setNamesrvAddr(namesrv);
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            producer.start();
            PRODUCERS.put(namesrv, producer);
        }
        return producer;
    }

    private static JSONObject run(JSONObject what) throws Exception {
        DefaultMQProducer producer = producer(what.getString("namesrv"));
        byte[] body = new byte[what.getIntValue("bytes")];
        Arrays.fill(body, (byte) 'b');
        Sender[] senders = new Sender[what.getIntValue("threads")];
        CountDownLatch ended = new CountDownLatch(senders.length);
        long start = System.nanoTime();
        long until = start + (long) (what.getDoubleValue("seconds") * 1e9);
        double rate = what.getDoubleValue("rate");
        long interval = rate > 0 ? (long) (1e9 / rate) : 0;
        for (int i = 0; i < senders.length; i++) {
            boolean wait = !Boolean.FALSE.equals(what.getBoolean("wait"));
            senders[i] = new Sender(producer, what.getString("topic"), body, wait, until, ended);
            senders[i].first = start + i * interval;
            senders[i].step = senders.length * interval;
            new Thread(senders[i], "sender-" + i).start();
        }
        ended.await();
        return report(senders, System.nanoTime() - start);
    }

    private static JSONObject report(Sender[] senders, long nanos) {
        int sent = 0;
        long failed = 0;
        for (Sender sender : senders) {
            sent += sender.sent;
            failed += sender.failed;
        }
        int[] all = new int[sent];
        int at = 0;
        for (Sender sender : senders) {
            System.arraycopy(sender.micros, 0, all, at, sender.sent);
            at += sender.sent;
        }
        Arrays.sort(all);
        return new JSONObject(true).fluentPut("sent", sent).fluentPut("failed", failed).fluentPut("seconds", nanos / 1e9)
            .fluentPut("p50_us", at(all, 0.5)).fluentPut("p99_us", at(all, 0.99)).fluentPut("max_us", at(all, 1));
    }

    private static int at(int[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
    }

    private static final class Sender implements Runnable {
        private final DefaultMQProducer producer;
        private final String topic;
        private final byte[] body;
        private final boolean wait;
        private final long until;
        private final CountDownLatch ended;
        /** When to send the first message, and the time from one to the next; 0: at once after each response. */
        private long first;
        private long step;
        private int[] micros = new int[1 << 16];
        private int sent;
        private long failed;

        Sender(DefaultMQProducer producer, String topic, byte[] body, boolean wait, long until, CountDownLatch ended) {
            this.producer = producer;
            this.topic = topic;
            this.body = body;
            this.wait = wait;
            this.until = until;
            this.ended = ended;
        }

        @Override
        public void run() {
            long due = first;
            for (long now = System.nanoTime(); now < until; ) {
                long begin = now;
                if (step > 0) {
                    if (due >= until) {
                        break;
                    }
                    begin = now > due ? due : sleepUntil(due);
                    due += step;
                }
                boolean ok;
                try {
                    ok = producer.send(message()).getSendStatus() == SendStatus.SEND_OK;
                } catch (Exception error) {
                    ok = false;
                }
                long after = System.nanoTime();
                if (ok) {
                    record((int) ((after - begin) / 1000));
                } else {
                    failed++;
                }
                now = after;
            }
            ended.countDown();
        }

        private static long sleepUntil(long due) {
            long now = System.nanoTime();
            while (now < due) {
                LockSupport.parkNanos(due - now);
                now = System.nanoTime();
            }
            return now;
        }

        private Message message() {
            Message message = new Message(topic, body);
            if (!wait) {
                message.setWaitStoreMsgOK(false);
            }
            return message;
        }

        private void record(int value) {
            if (sent == micros.length) {
                micros = Arrays.copyOf(micros, sent * 2);
            }
            micros[sent++] = value;
        }
    }
}

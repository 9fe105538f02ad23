import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * StoreBench BROKER_CONF (append MESSAGES THREADS | find | read | key COUNT | open) [halt]: times RocketMQ's
 * own DefaultMessageStore, in process. "find" calls getMessage; "read" also copies the messages into one
 * buffer, as its broker does for a response. Prints one line: {"open": seconds, "messages": done, "seconds": for them}.
 * With "halt", it exits like a killed process.
 */
public final class StoreBench {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final byte[] BODY = new byte[128];

    public static void main(String[] args) throws Exception {
        java.util.Properties conf = new java.util.Properties();
        try (java.io.FileReader reader = new java.io.FileReader(args[0])) {
            conf.load(reader);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(conf, config);
        config.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("bench"),
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> { }, new BrokerConfig());
        long begin = System.nanoTime();
        store.load();
        store.start();
        await(store);
        double open = (System.nanoTime() - begin) / 1e9;
        begin = System.nanoTime();
        long done = 0;
        if (args[1].equals("append")) {
            done = append(store, Integer.parseInt(args[2]), Integer.parseInt(args[3]));
        } else if (args[1].equals("find") || args[1].equals("read")) {
            done = read(store, args[1].equals("read"));
        } else if (args[1].equals("key")) {
            done = key(store, Integer.parseInt(args[2]));
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        System.out.println("{\"open\":" + open + ",\"messages\":" + done + ",\"seconds\":" + seconds + "}");
        System.out.flush();
        if (args[args.length - 1].equals("halt")) {
            Runtime.getRuntime().halt(0);
        }
        store.shutdown();
        System.exit(0);
    }

    private static void await(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    private static long append(DefaultMessageStore store, int messages, int threads) throws Exception {
        CountDownLatch ended = new CountDownLatch(threads);
        for (int t = 0; t < threads; t++) {
            final int first = t;
            new Thread(() -> {
                for (int n = first; n < messages; n += threads) {
                    store.putMessage(message(n));
                }
                ended.countDown();
            }).start();
        }
        ended.await();
        await(store);
        return messages;
    }

    private static MessageExtBrokerInner message(int n) {
        MessageExtBrokerInner inner = new MessageExtBrokerInner();
        inner.setTopic("BenchmarkTest");
        inner.setQueueId(n % 4);
        inner.setBody(BODY);
        inner.setBornTimestamp(System.currentTimeMillis());
        inner.setBornHost(HOST);
        inner.setStoreHost(HOST);
        inner.setPropertiesString("KEYS\001key" + n % 1000 + "\002UNIQ_KEY\001C000020200004E0E2F2A6903"
            + String.format("%08X", n) + "\002WAIT\001true\002TAGS\001TagA\002");
        return inner;
    }

    private static long read(DefaultMessageStore store, boolean copy) {
        long done = 0;
        for (int queue = 0; queue < 4; queue++) {
            long offset = 0;
            GetMessageResult result = store.getMessage("bench", "BenchmarkTest", queue, offset, 32, null);
            while (result.getStatus() == GetMessageStatus.FOUND) {
                done += result.getMessageCount();
                if (copy) {
                    ByteBuffer body = ByteBuffer.allocate(result.getBufferTotalSize());
                    result.getMessageBufferList().forEach(body::put);
                }
                offset = result.getNextBeginOffset();
                result.release();
                result = store.getMessage("bench", "BenchmarkTest", queue, offset, 32, null);
            }
        }
        return done;
    }

    private static long key(DefaultMessageStore store, int count) {
        for (int n = 0; n < count; n++) {
            String key = "C000020200004E0E2F2A6903" + String.format("%08X", n);
            store.queryMessage("BenchmarkTest", key, 32, 0, Long.MAX_VALUE).release();
        }
        return count;
    }
}

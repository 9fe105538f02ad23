package org.apache.rocketmq.broker;

import java.lang.reflect.Proxy;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The objects of a broker that tests use; each asks the broker's process. */
final class RemoteBroker {
    private static final long TIMEOUT_MS = 10_000;
    private final BrokerConfig config;
    private final String address;
    private DefaultMQAdminExt admin;

    RemoteBroker(BrokerConfig config) {
        this.config = config;
        this.address = config.getBrokerIP1() + ":" + config.getListenPort();
    }

    /** A request of an operator. */
    private interface Request<T> {
        T of(DefaultMQAdminExt admin) throws Exception;
    }

    private synchronized <T> T ask(Request<T> request) {
        try {
            if (admin == null) {
                admin = new DefaultMQAdminExt(TIMEOUT_MS);
                admin.setInstanceName("suite-" + config.getBrokerName());
                admin.setNamesrvAddr(config.getNamesrvAddr());
                admin.start();
                Runtime.getRuntime().addShutdownHook(new Thread(admin::shutdown));
            }
            return request.of(admin);
        } catch (Exception e) {
            throw new IllegalStateException(address, e);
        }
    }

    private MessageQueue queue(Object[] arguments) {
        return new MessageQueue((String) arguments[0], config.getBrokerName(), (Integer) arguments[1]);
    }

    MessageStore store() {
        Class<?>[] types = {MessageStore.class};
        return (MessageStore) Proxy.newProxyInstance(getClass().getClassLoader(), types, (proxy, method, arguments) -> {
            switch (method.getName()) {
                case "dispatchBehindBytes":
                    return 0L;
                case "getMinOffsetInQueue":
                    return ask(admin -> admin.minOffset(queue(arguments)));
                case "getMaxOffsetInQueue":
                    return ask(admin -> admin.maxOffset(queue(arguments)));
                case "destroy":
                    return null;
                default:
                    throw new UnsupportedOperationException("MessageStore." + method.getName());
            }
        });
    }

    TopicConfigManager topics() {
        return new TopicConfigManager(null, false) {
            @Override
            public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
                return new ConcurrentHashMap<>(
                    ask(admin -> admin.getAllTopicConfig(address, TIMEOUT_MS)).getTopicConfigTable());
            }

            @Override
            public void updateTopicConfig(TopicConfig topic) {
                ask(admin -> {
                    admin.createAndUpdateTopicConfig(address, topic);
                    return null;
                });
            }
        };
    }

    SubscriptionGroupManager groups() {
        return new SubscriptionGroupManager(null, false) {
            @Override
            public void updateSubscriptionGroupConfig(SubscriptionGroupConfig group) {
                ask(admin -> {
                    admin.createAndUpdateSubscriptionGroupConfig(address, group);
                    return null;
                });
            }

            @Override
            public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
                return ask(admin -> admin.examineSubscriptionGroupConfig(address, group));
            }
        };
    }

    ConsumerOffsetManager offsets() {
        return new ConsumerOffsetManager() {
            @Override
            public long queryOffset(String group, String topic, int queueId) {
                return progress(group, topic, queueId).getConsumerOffset();
            }

            @Override
            public long queryPullOffset(String group, String topic, int queueId) {
                return progress(group, topic, queueId).getPullOffset();
            }
        };
    }

    private OffsetWrapper progress(String group, String topic, int queueId) {
        MessageQueue queue = new MessageQueue(topic, config.getBrokerName(), queueId);
        return ask(admin -> admin.examineConsumeStats(address, group, topic, TIMEOUT_MS)).getOffsetTable().get(queue);
    }

    BrokerOuterAPI outerApi() {
        return new BrokerOuterAPI(new NettyClientConfig(), new AuthConfig()) {
            @Override
            public void refreshMetadata() {
            }
        };
    }
}

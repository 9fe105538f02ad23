package org.apache.rocketmq.broker;

import java.util.Arrays;
import java.util.Iterator;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.offset.ConsumerOrderInfoManager;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Takes the place of RocketMQ's class in its own tests: stands for a broker that runs in another process.
 *
 * The property suite.broker.ports has the ports of these brokers. The n-th broker that a test class starts is the
 * one of the n-th port. What tests read from a broker's objects is asked of the broker by requests; what they set
 * in its configuration has no effect.
 */
public class BrokerController {
    private static final Iterator<String> PORTS =
        Arrays.asList(System.getProperty("suite.broker.ports").split(",")).iterator();
    private final BrokerConfig config;
    private final NettyServerConfig server;
    private final MessageStoreConfig storeConfig;
    private RemoteBroker remote;

    public BrokerController(
        BrokerConfig config, NettyServerConfig server, NettyClientConfig client, MessageStoreConfig storeConfig) {
        this.config = config;
        this.server = server;
        this.storeConfig = storeConfig;
    }

    public boolean initialize() {
        int port = Integer.parseInt(PORTS.next());
        server.setListenPort(port);
        config.setListenPort(port);
        remote = new RemoteBroker(config);
        return true;
    }

    public void start() {
    }

    public void shutdown() {
    }

    public String getBrokerAddr() {
        return config.getBrokerIP1() + ":" + server.getListenPort();
    }

    public BrokerConfig getBrokerConfig() {
        return config;
    }

    public NettyServerConfig getNettyServerConfig() {
        return server;
    }

    public MessageStoreConfig getMessageStoreConfig() {
        return storeConfig;
    }

    public MessageStore getMessageStore() {
        return remote.store();
    }

    public TopicConfigManager getTopicConfigManager() {
        return remote.topics();
    }

    public SubscriptionGroupManager getSubscriptionGroupManager() {
        return remote.groups();
    }

    public ConsumerOffsetManager getConsumerOffsetManager() {
        return remote.offsets();
    }

    public ConsumerOrderInfoManager getConsumerOrderInfoManager() {
        throw new UnsupportedOperationException("ConsumerOrderInfoManager");
    }

    public BrokerOuterAPI getBrokerOuterAPI() {
        return remote.outerApi();
    }

    public void registerBrokerAll(boolean checkOrderConfig, boolean oneway, boolean forceRegister) {
    }
}

package org.apache.rocketmq.namesrv;

import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/** Takes the place of RocketMQ's class in its own tests: stands for a name server that runs in another process. */
public class NamesrvController {
    private final NamesrvConfig config;
    private final NettyServerConfig server;

    public NamesrvController(NamesrvConfig config, NettyServerConfig server) {
        this.config = config;
        this.server = server;
    }

    public boolean initialize() {
        server.setListenPort(Integer.getInteger("suite.namesrv.port"));
        return true;
    }

    public void start() {
    }

    public void shutdown() {
    }

    public NamesrvConfig getNamesrvConfig() {
        return config;
    }

    public NettyServerConfig getNettyServerConfig() {
        return server;
    }
}

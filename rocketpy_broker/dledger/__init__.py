"""DLedger: a group of brokers that elects its leader. Formats and pure cores; nothing here drives them yet.

`entry`, `state_files`: what lies on disk. `codes`, `wire`: what peers say to each other. All of it as in
DLedger 0.1, which RocketMQ 4.6.0 ships.
"""

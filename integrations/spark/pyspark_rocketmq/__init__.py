"""The home of the Spark data source ``rocketmq``; nothing is built here yet.

Spark looks for top-level modules named ``pyspark_*`` by itself, hence the name.
"""

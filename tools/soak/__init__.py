"""A long run in pieces that can be stopped and continued: `make soak ARGS="--minutes 30"`.

Producers and consumers work against a name server and a broker in a process of their own, on one store, which
is killed and restarted in every second piece. Each acknowledged message must be read, unchanged, at the
place that its acknowledgement named; memory must stay flat.

With ``--crowd`` producers and consumers of both languages, each a process of its own, come, leave and are
killed: each acknowledged message must be taken by each group, orderly ones in order, and twice only where a
member has come or gone.
"""

"""The web console of the command `rocketpy console`: pages about a cluster, for browsers.

It needs the extra `console`. All modules except `command` are imported when the command runs.
"""

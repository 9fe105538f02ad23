"""``rocketpy doctor``: checks a cluster and this machine, and says what to do about what is wrong."""

"""``rocketpy doctor``: checks a cluster and this machine, and names a remedy for each problem."""

"""Background tasks, signals, rate-limited logs and pickles; every layer may use them."""

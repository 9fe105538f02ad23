"""Background tasks, rate-limited logs and pickles; every layer may use them."""

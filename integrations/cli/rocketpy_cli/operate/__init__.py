"""Commands that show and change a cluster: topics, groups, brokers, accounts, name servers."""

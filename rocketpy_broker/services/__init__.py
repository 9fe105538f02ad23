"""Services of a broker besides the store: metadata, delays, transactions, statistics, registration."""

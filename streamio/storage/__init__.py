"""Storage: URLs, discovery, range reads, retries, the read-ahead budget."""

"""Search: tools that bring evidence, a cache before them, batches of requests."""

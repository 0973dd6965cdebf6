"""Large vocabularies: tables in shards, and losses of sampled classes."""

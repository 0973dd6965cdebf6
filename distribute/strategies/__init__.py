"""Strategies: replicas, shards and stages of models; meshes and layouts. See docs/training_on_clusters.md."""

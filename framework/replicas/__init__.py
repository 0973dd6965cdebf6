"""Training of replicas: how `fit` runs on the workers of a cluster, under a strategy of `ab.distribute`."""

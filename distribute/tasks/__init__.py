"""Tasks of a cluster and their clients: masters, workers, sessions, resources, heartbeats."""

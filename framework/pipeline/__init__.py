"""Training steps in stages: how a model that was compiled under `distribute.Pipeline` runs on several devices."""

"""The names that a training script imports: models, training, callbacks, losses, metrics, data, saving.

Nothing is imported here, so that ``import anabranch`` stays quick; see `models`, `callbacks`, `losses`, `metrics`,
`saving`, `utils` and `config`.
"""

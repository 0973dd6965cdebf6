"""The pipeline: passes in order, the rewriter, patterns and their driver, the verifier, analyses that all use."""

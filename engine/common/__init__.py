"""Names that the packages of the engine share, and that import none of them: dtypes, nests, dataclasses."""

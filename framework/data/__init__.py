"""Data: files and folders of them, datasets, batches."""

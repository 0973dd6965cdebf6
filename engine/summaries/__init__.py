"""Summaries: ops that write what TensorBoard shows, and the format of its files."""

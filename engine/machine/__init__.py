"""Runs the machine form of a step: executors of tagged tokens, one partition a device."""

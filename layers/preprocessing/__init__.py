"""Layers that prepare numbers, text, images and sound."""

"""Measurements of the store's own parts, driven by the command line through JSON lines."""

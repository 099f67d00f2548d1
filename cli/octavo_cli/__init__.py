"""The octavo command: starts, asks, watches and measures a cluster."""

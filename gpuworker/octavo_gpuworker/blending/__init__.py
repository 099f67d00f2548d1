"""Reuse of KV at other positions: an experiment beside the engine, measured by `octavo bench blend`."""

"""What computes the engine's steps: one protocol, and its implementations. Only the one that is opened is imported."""

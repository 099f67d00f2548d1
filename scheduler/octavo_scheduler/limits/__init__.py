"""The door: who may wait, for how long, at whose expense, and what becomes of a request when there is too much work."""

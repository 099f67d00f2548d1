"""A discrete-event run of the real core with simulated workers; pure, deterministic, knows no policy (docs/simulator.md)."""

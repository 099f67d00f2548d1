"""Beam search: its rule, its state, and how its beams live as sequences of one worker."""

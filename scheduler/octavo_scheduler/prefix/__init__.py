"""The prefix index of one worker: a radix tree over blocks, what its cached blocks are worth, and what pins them."""

"""The scheduler's policies: who waits before whom, who joins a batch, and how much one step computes."""

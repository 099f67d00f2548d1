"""What a model takes: weights, KV, activations; and what keeping a context cached is worth."""

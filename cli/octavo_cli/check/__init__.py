"""The correctness gate: is what is served the model that was meant, served as it was promised."""

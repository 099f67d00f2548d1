"""KV that moves because somebody is to go on with it: swapped out, handed over, or left by a client that pauses."""

"""What people decide about cached KV: preloads, pins, times to live, eviction by name, and why something was not found."""

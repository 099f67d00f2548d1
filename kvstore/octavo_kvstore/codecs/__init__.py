"""Compression of KV payloads below DRAM: forms, their table, and the choice between them."""

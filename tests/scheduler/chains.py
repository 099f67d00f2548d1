"""Prefix ids: what stands for a position's KV in a chaos worker."""

from __future__ import annotations


def extend_chain(chain: list[int], tokens: list[int]) -> None:
    """Prefix ids: position p's id depends on tokens[:p + 1]."""
    while len(chain) < len(tokens):
        previous = chain[-1] if chain else 7
        chain.append(hash((previous, tokens[len(chain)])) & 0x7FFFFFFFFFFFFFFF)


def chain_of(tokens: list[int]) -> list[int]:
    """The prefix ids of a whole list."""
    extend_chain(chain := [], tokens)
    return chain

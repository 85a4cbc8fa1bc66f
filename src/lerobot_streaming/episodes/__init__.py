"""Whole episodes: where they lie, how they are fetched, and the compressed bytes and rows held of them."""

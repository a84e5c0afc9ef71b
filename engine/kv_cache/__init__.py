"""Paged KV cache bookkeeping: block pool, prefix cache, block tables, memory sizing. Imports no torch."""

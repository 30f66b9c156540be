"""Benches: load on any server, comparisons in alternation, and the engine alone."""

from corral.bench.main import main

__all__ = ["main"]

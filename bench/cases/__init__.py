"""The single measurements, which `python -m bench` and `bench.against` put together.

A case is a generator. It makes what it needs, yields one sample for each round, and cleans up when
it is closed. A sample is a number for each thing measured; lower is better, in all of them. Cases
of wheeld use its public API only, so that they can measure earlier commits, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

Sample = dict[str, float]
Case = Callable[[bool], Iterator[Sample]]
"""Called with True for tiny sizes: does it run at all?"""

"""The cases that `bench.registry` puts together.

A case is a generator, called with True for tiny sizes. It makes what it needs, yields a sample for
each round, and cleans up when it is closed. A sample is a number for each thing measured; lower is
better, in all of them. Cases of wheeld that `bench.against` measures use the public API only, so
that they can measure earlier commits, too.
"""

"""Workloads: requests as Parquet, made from a model; models, given or fitted to a recorded trace.

model       what a workload is: arrivals, latencies, timeouts, sizes; as JSON
exact       logarithms and quantiles that are the same to the bit everywhere
blocks      the numbers of one block of requests; pure
requests    all blocks, in this process or on Spark
fitting     a model from a recorded trace
observed    what the trace shows, counted batch by batch
judgement   what the model says well, and what it does not
censored    the arithmetic of the latencies in it; pure
mixes       timeouts and sizes in it; pure
"""

from wheeld_pipeline.workload.fitting import fit
from wheeld_pipeline.workload.model import Arrivals, Curve, Latency, Mix, Model
from wheeld_pipeline.workload.requests import COLUMNS, generate, write, write_here

__all__ = [
    "COLUMNS", "Arrivals", "Curve", "Latency", "Mix", "Model", "fit", "generate", "write",
    "write_here",
]  # fmt: skip

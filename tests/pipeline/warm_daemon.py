"""Spark's daemon of Python workers, with everything loaded that they import: each is forked warm.

For `spark.python.daemon.module`. Spark's own loads nothing before it forks, because libraries may
start threads. Of these only Arrow's allocator has one, and it survives a fork.
"""

import contextlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark.worker
from pyspark.daemon import manager

from wheeld_pipeline import report
from wheeld_pipeline.errors import PipelineError

LOADED = (np, pd, pa, pyspark.worker, report)
with contextlib.suppress(PipelineError):  # they need PySpark 4.2, the rest 4.0
    from wheeld_pipeline import datasource, overflow

    LOADED += (datasource, overflow)  # type: ignore[assignment]

if __name__ == "__main__":
    manager()

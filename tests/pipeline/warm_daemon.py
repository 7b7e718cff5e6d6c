"""Spark's daemon of Python workers, with everything loaded that they import: each is forked warm.

For `spark.python.daemon.module`. Spark's own loads nothing before it forks, because libraries may
start threads. Of these only Arrow's allocator has one, and it survives a fork.
"""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark.worker
from pyspark.daemon import manager

from wheeld_pipeline import datasource, overflow, report

LOADED = (np, pd, pa, pyspark.worker, datasource, overflow, report)

if __name__ == "__main__":
    manager()

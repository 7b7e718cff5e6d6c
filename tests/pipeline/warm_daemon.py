"""`pyspark.daemon` with everything loaded that its workers import: each is forked warm.

For `spark.python.daemon.module`. Spark's own loads nothing, because it knows not what starts
threads; what is loaded here starts none.
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

"""Reports on recorded traces: numbers, tables, one page; and comparisons of two.

    from wheeld_pipeline.report import write
    write(None, "trace", "report").page     # in this process; with a SparkSession: by its tasks

Importing this loads pandas, but not Spark.
"""

from wheeld_pipeline.report.analysis.analyse import Report, analyse
from wheeld_pipeline.report.compare import Comparison, compare, write_comparison
from wheeld_pipeline.report.files import Paths, load, of_trace, save, write

__all__ = [
    "Comparison",
    "Paths",
    "Report",
    "analyse",
    "compare",
    "load",
    "of_trace",
    "save",
    "write",
    "write_comparison",
]

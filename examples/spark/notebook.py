"""From a trace to plots, as cells: open it in an editor that knows `# %%`, or run it.

    pip install '.[report,plots]'
    python examples/spark/notebook.py TRACE [OUT]

The first cells need no Java; the last asks Spark the same, if it is there.
"""

# %% Where the trace is
import sys
from pathlib import Path

trace = Path(sys.argv[1] if len(sys.argv) > 1 else "trace")
out = Path(sys.argv[2] if len(sys.argv) > 2 else "notebook-out")
out.mkdir(parents=True, exist_ok=True)

# %% What it says: single numbers, and tables as pandas DataFrames
from wheeld_pipeline.report import of_trace  # noqa: E402

report = of_trace(None, trace)  # as the last line of a cell, `report` shows the whole page
for sentence in report.facts["verdict"]["sentences"]:
    print(sentence)
workers = report.tables["workers"].sort_values("p99", ascending=False)
print(workers[["worker", "scheduled", "timeout_rate", "p99"]].head())

# %% Lateness over time
import matplotlib  # noqa: E402

matplotlib.use("Agg")  # leave this line out in a notebook
import matplotlib.pyplot as plt  # noqa: E402

minutes = report.tables["minutes"]
figure, axis = plt.subplots(figsize=(9, 4))
for name in ("p50", "p99"):
    axis.plot(minutes["time"], minutes[name] / 1e6, label=name)
axis.set(ylabel="lateness, ms", yscale="log")
axis.legend()
figure.savefig(out / "lateness.png")

# %% What another wheel would have cost
candidates = report.tables["candidates"]
figure, axis = plt.subplots(figsize=(9, 4))
for size, rows in candidates.groupby("wheel_size"):
    axis.plot(rows["tick_us"] / 1000, rows["cpu_percent"], marker="o", label=f"{size} buckets")
axis.set(xlabel="tick, ms", ylabel="percent of a core, estimated", xscale="log")
axis.legend()
figure.savefig(out / "wheels.png")

# %% The events themselves, in Spark: which timeouts are used, and how often each expires
from wheeld_pipeline import PipelineError, session  # noqa: E402
from wheeld_pipeline.trace import read_events  # noqa: E402

try:
    session.check()
except PipelineError as error:
    print(f"no Spark here: {error}")
else:
    with session.opened("notebook") as spark:
        events = read_events(spark, trace)
        ended = events.where("event in ('expired', 'cancelled') and not periodic")
        by_delay = ended.groupBy("delay_ns").agg({"*": "count"}).orderBy("delay_ns")
        by_delay.show(10)

"""`wheeld pipeline fit`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from wheeld_pipeline import trace as traces
from wheeld_pipeline.commands.options import Json, errors_to_exit, with_spark
from wheeld_pipeline.files import on_disk, writable
from wheeld_pipeline.session import SparkOptions


def register(app: typer.Typer) -> None:
    app.command()(fit)


@with_spark
def fit(
    trace: Annotated[str, typer.Argument(help="A trace recorded by `wheeld start --trace`.")],
    model: Annotated[str, typer.Argument(help="The JSON file to write; overwritten if it exists.")],
    bin_seconds: Annotated[
        float | None,
        typer.Option(
            help="Length of the bins in which the arrival rate is constant.",
            show_default="a minute",
        ),
    ] = None,
    as_json: Json = False,
    *,
    spark: SparkOptions,
) -> None:
    """Fit a workload model to a recorded trace; `generate --model` makes requests from it.

    The model has arrival rates over the day, latency (timed-out requests count as longer than their
    timeout), timeouts and sizes, and says how well it fits. Latency is log-normal if that fits,
    else the observed distribution. It needs no Java, unless the trace is at a URL.

    Example: wheeld pipeline fit /var/lib/wheeld/shop/trace model.json
    """
    with errors_to_exit():
        from wheeld_pipeline import workload
        from wheeld_pipeline.commands.readers import EngineChoice, opened

        file = on_disk("MODEL", model)
        writable("MODEL", file.parent)
        traces.check_trace(trace)
        choice = EngineChoice.SPARK
        if traces.is_local(trace) and not spark.is_given:
            choice = EngineChoice.LOCAL
        with opened(trace, choice, spark) as found:
            made = workload.fit(found, trace, bin_seconds)
        made.save(file)
        content = asdict(made)
        typer.echo(json.dumps(content, indent=1) if as_json else _text(content, file))


def _text(content: dict[str, Any], path: Path) -> str:
    from wheeld_pipeline.workload import judgement

    about, latency = content["fitted"], content["latency"]
    arrivals, ends = about["arrivals"], about["latency"]
    timeouts = content["timeouts_ns"]
    lines = [
        f"arrivals   {arrivals['count']:,} from {about['first']} to {about['last']}: "
        f"{arrivals['per_second']:,.0f}/s in {len(content['arrivals']['per_second'])} bins",
        f"           waits: KS distance {arrivals['ks_distance']:.4f} from exponential; counts per "
        f"second: chi-square {arrivals['chi_square']:,.0f} for "
        f"{arrivals['degrees_of_freedom']:,} degrees of freedom",
    ]
    if latency is None:
        lines.append("latency    no request was done before its timeout")
    else:
        known = latency if "p50_ms" in latency else None
        how = f"{len(latency['ns'])} observed points" if known is None else (
            f"p50 {known['p50_ms']:.3f} ms, p75 {known['p75_ms']:.3f} ms"
        )  # fmt: skip
        lines.append(
            f"latency    {how}, from {ends['done']:,} done and {ends['timed_out']:,} timed out"
        )
    mix = zip(timeouts["weights"], timeouts["values"], strict=True)
    shown = ", ".join(f"{value / 1e6:g} ms {weight:.1%}" for weight, value in sorted(mix)[:-7:-1])
    lines += [
        f"timeouts   {shown}",
        f"resolution {about['resolution_ms']:.2f} ms: shorter latencies count as shorter than that",
        *(f"judgement  {line}" for line in judgement.texts(about["judgement"])),
        f"written to {path}",
    ]
    return "\n".join(lines)

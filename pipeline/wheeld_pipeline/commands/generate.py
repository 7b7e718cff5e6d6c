"""`wheeld pipeline generate`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from wheeld_pipeline.commands import fit
from wheeld_pipeline.commands.options import Json, errors_to_exit, with_spark
from wheeld_pipeline.errors import UsageError
from wheeld_pipeline.files import on_disk
from wheeld_pipeline.session import SparkOptions

if TYPE_CHECKING:
    from wheeld_pipeline.workload import Model


def register(app: typer.Typer) -> None:
    app.command()(generate)
    fit.register(app)  # its other half


@with_spark
def generate(
    out: Annotated[
        str, typer.Argument(help="Folder for the Parquet files, or a URL that Spark knows.")
    ],
    rows: Annotated[int, typer.Option(help="Requests.")] = 1_000_000,
    rate: Annotated[
        float | None, typer.Option(help="Arrivals per second.", show_default="80000")
    ] = None,
    p50_ms: Annotated[
        float | None, typer.Option(help="Median of the latency.", show_default="20")
    ] = None,
    p75_ms: Annotated[
        float | None, typer.Option(help="75th percentile of the latency.", show_default="60")
    ] = None,
    timeout_ms: Annotated[
        list[str] | None,
        typer.Option(help="MS, or MS:WEIGHT several times for a mix.", show_default="200"),
    ] = None,
    payload_bytes: Annotated[
        int | None, typer.Option(help="Size of each request's payload.", show_default="100")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model from `wheeld pipeline fit`, instead of these options."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed makes the same requests.")] = 1,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing workload in OUT.")] = False,
    partitions: Annotated[
        int | None, typer.Option(help="Number of files; the requests stay the same.")
    ] = None,
    as_json: Json = False,
    *,
    spark: SparkOptions,
) -> None:
    """Make a workload as Parquet: Poisson arrivals, log-normal latencies, timeouts, sizes.

    The same seed gives the same requests on any machine and any number of cores. This process makes
    up to 20 million requests in a folder, without Java; Spark makes more.

    Example: wheeld pipeline generate workload --rows 1000000 --rate 5000
    """
    with errors_to_exit():
        from wheeld_pipeline import progress, session
        from wheeld_pipeline.workload import judgement, requests

        given = [rate, p50_ms, p75_ms, timeout_ms, payload_bytes]
        if model is not None and any(value is not None for value in given):
            raise UsageError(
                "got --model together with options of a model (--rate, --p50-ms, --p75-ms, "
                "--timeout-ms, --payload-bytes): expected either"
            )
        chosen = _model(model, rate, p50_ms, p75_ms, timeout_ms, payload_bytes)
        requests.check(rows, chosen, seed, partitions)
        requests.check_out(out, overwrite)
        for line in judgement.unlike(chosen):
            typer.echo(f"generate: {line}", err=True)
        if "://" not in out and rows <= requests.MOST_HERE and not spark.is_given:
            requests.write_here(rows, chosen, out, seed, partitions, overwrite)
        else:
            with session.opened("wheeld generate", spark) as found:
                made = requests.generate(found, rows, chosen, seed, partitions)
                with progress.of_job(found, "generate", requests.partitions_of(rows, partitions)):
                    requests.write(made, out, overwrite)
        content = {"out": out, "rows": rows, "seed": seed, "model": asdict(chosen)}
        typer.echo(json.dumps(content, indent=1) if as_json else f"{rows:,} requests in {out}")


def _model(
    file: str | None,
    rate: float | None,
    p50_ms: float | None,
    p75_ms: float | None,
    timeouts: list[str] | None,
    payload_bytes: int | None,
) -> Model:
    from wheeld_pipeline.workload import Model

    if file is not None:
        return Model.load(on_disk("--model", file))
    given = {
        "rate": rate,
        "p50_ms": p50_ms,
        "p75_ms": p75_ms,
        "payload_bytes": payload_bytes,
        "timeouts_ms": [_timeout(text) for text in timeouts] if timeouts else None,
    }
    return Model.constant(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


def _timeout(text: str) -> tuple[float, float]:
    """MS or MS:WEIGHT."""
    value, _, weight = text.partition(":")
    try:
        return float(value), float(weight or 1)
    except ValueError:
        raise UsageError(
            f"--timeout-ms: got {text!r}, expected milliseconds, or milliseconds:weight"
        ) from None

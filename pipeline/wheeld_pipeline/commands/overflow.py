"""`wheeld pipeline overflow`."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from wheeld_core.units import parse_bytes, parse_duration
from wheeld_pipeline import session
from wheeld_pipeline.commands.options import Json, errors_to_exit, pairs, with_spark
from wheeld_pipeline.errors import UsageError
from wheeld_pipeline.files import writable
from wheeld_pipeline.session import SparkOptions

if TYPE_CHECKING:
    from wheeld_pipeline.overflow import Plan, ShardMap

SHARDS: Final = 8


def register(app: typer.Typer) -> None:
    app.command("overflow")(overflow)
    app.command("overflow-compact")(compact)


@with_spark(without={"remote": "the overflow needs a driver of its own: use --master"})
def overflow(
    commands: Annotated[
        str, typer.Option(help="Directory of the command files; not used with kafka.")
    ],
    sink: Annotated[str, typer.Option(help="Directory for expirations and rejected commands.")],
    checkpoint: Annotated[str, typer.Option(help="Directory of the log, shared by all hosts.")],
    form: Annotated[
        str, typer.Option("--format", help="Format of the commands: json, parquet or kafka.")
    ] = "json",
    option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for Spark's source. May be repeated.")
    ] = None,
    daemon: Annotated[
        str, typer.Option(help="Daemon on each host: name or directory.")
    ] = "default",
    runtime_dir: Annotated[
        str | None, typer.Option(help="Directory that holds the daemon's runtime directory.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Number of shards of the keys.", show_default=f"{SHARDS}")
    ] = None,
    shard_map: Annotated[
        Path | None, typer.Option(help="File (TOML, JSON) that gives each shard its daemon.")
    ] = None,
    horizon: Annotated[
        str, typer.Option(help="How long before its deadline a timer goes to the daemon.")
    ] = "30s",
    grace: Annotated[
        str,
        typer.Option(help="How long after its deadline an undelivered timer is handed out again."),
    ] = "10s",
    remember: Annotated[
        str, typer.Option(help="How long an ended key is remembered, to ignore repeated commands.")
    ] = "10m",
    trigger: Annotated[str, typer.Option(help="How often a batch starts, such as 200ms.")] = "1s",
    once: Annotated[
        bool, typer.Option("--once", help="Process the present commands, then exit.")
    ] = False,
    cache: Annotated[
        str | None,
        typer.Option(
            help="Directory for the columns, on each host.",
            show_default="in the one for temporary files",
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(help="File for Prometheus' textfile collector, replaced every few seconds."),
    ] = None,
    as_json: Json = False,
    *,
    spark: SparkOptions,
) -> None:
    """Keep far timers in columns, and hand them to daemons in time. Ctrl-C ends it.

    Every few seconds it reports its progress on stderr; with --json it prints a line of JSON
    instead, with figures for each shard.

    Example: wheeld pipeline overflow --commands commands --sink sink --checkpoint checkpoint
    """
    with errors_to_exit():
        from wheeld_pipeline import overflow as jobs

        spread = _spread(shards, shard_map, jobs.Daemon(daemon, runtime_dir))
        rules = jobs.Rules(
            milliseconds("horizon", horizon),
            milliseconds("grace", grace),
            remember_ms=milliseconds("remember", remember),
        )
        plan = jobs.Plan(
            commands, sink, checkpoint, spread, rules, form, pairs("--option", option),
            None if once else f"{milliseconds('trigger', trigger)} milliseconds", cache,
        )  # fmt: skip
        file = metrics and writable("--metrics", metrics.parent) / metrics.name
        if (warning := untested(plan)) is not None:
            typer.echo(warning, err=True)
        _run(plan, spark, as_json, file)


def compact(
    sink: Annotated[str, typer.Argument(help="The sink of an overflow.")],
    file_bytes: Annotated[
        str, typer.Option(help="Size up to which folders are merged, such as 128M.")
    ] = "128M",
    older_than: Annotated[
        str,
        typer.Option(
            help="Merge only files that are older than the newest one by this."
            " 0s: nobody reads the sink as a stream."
        ),
    ] = "8d",
    as_json: Json = False,
) -> None:
    """Merge the small folders of a sink into few files; the overflow may run, and readers read.

    Example: wheeld pipeline overflow-compact sink --file-bytes 256M
    """
    with errors_to_exit():
        from wheeld_pipeline.overflow.driver.compact import compact as merge

        age = milliseconds("older-than", older_than) / 1000
        done = merge(sink, _size("--file-bytes", file_bytes), age)
        if as_json:
            typer.echo(json.dumps([one._asdict() for one in done]))
            return
        for one in done:
            typer.echo(
                f"{one.kind}: {one.folders_before:,} folders became {one.folders:,}, "
                f"{one.files_before:,} files became {one.files:,}, {one.rows:,} rows were merged"
            )


def _size(option: str, text: str) -> int:
    with contextlib.suppress(ValueError):
        if (size := parse_bytes(text)) > 0:
            return size
    raise UsageError(f"{option} {text!r}: expected a size such as 128M")


def _run(plan: Plan, options: SparkOptions, as_json: bool, file: Path | None) -> None:
    from wheeld_pipeline import overflow as jobs

    def tell(facts: dict[str, Any]) -> None:
        typer.echo(json.dumps(facts))

    with session.opened("wheeld overflow", options, ui=True) as spark:
        typer.echo(f"overflow: Spark's pages are at {spark.sparkContext.uiWebUrl}", err=True)
        say = partial(typer.echo, err=True)
        jobs.run(spark, plan, say, tell if as_json else None, file)


def untested(plan: Plan) -> str | None:
    """A warning, if the driver writes to a file system on which it is not tested."""
    from wheeld_pipeline.overflow.driver.sink import local

    far = [place for place in (plan.checkpoint, plan.sink) if local(place) is None]
    if not far:
        return None
    return (
        f"overflow: warning: checkpoints and sinks in object stores and HDFS ({', '.join(far)}) "
        "are untested: test there what happens when the driver dies, before you rely on it"
    )


def milliseconds(option: str, text: str) -> int:
    """A duration such as 30s, 500ms or 2h."""
    with contextlib.suppress(ValueError):
        whole, rest = divmod(parse_duration(text), 10**6)
        if not rest:
            return whole
    raise UsageError(f"--{option} {text!r}: expected a duration such as 30s, 500ms or 2h")


def _spread(shards: int | None, path: Path | None, daemon: object) -> ShardMap:
    from wheeld_pipeline.overflow import Daemon, ShardMap

    assert isinstance(daemon, Daemon)
    if path is None:
        return ShardMap.uniform(SHARDS if shards is None else shards, daemon)
    spread = ShardMap.read(path)
    if shards not in (None, spread.shards):
        raise UsageError(f"--shards {shards}, and {path} has {spread.shards}")
    return spread

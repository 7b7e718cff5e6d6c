"""Shared by the pipeline's commands: options, and errors as one line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from wheeld_client import WheelError
from wheeld_core import extras
from wheeld_pipeline.errors import UsageError
from wheeld_pipeline.session import SparkOptions

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_PANEL: Final = "Spark"
EXTRAS: Final = {
    "duckdb": "report", "pandas": "report", "pyarrow": "report", "jinja2": "report",
    "pyspark": "spark", "py4j": "spark", "confluent_kafka": "kafka",
}  # fmt: skip
"""The extra that brings a package."""


def _option(*names: str, **about: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_PANEL, **about)


_SPARK: Final = {
    "master": Annotated[
        str | None,
        _option(help="A Spark cluster, such as spark://host:7077.", show_default="local"),
    ],
    "remote": Annotated[
        str | None, _option(help="A Spark Connect server, such as sc://host:15002.")
    ],
    "conf": Annotated[
        list[str] | None, _option("--conf", help="KEY=VALUE for Spark. May be repeated.")
    ],
    "packages": Annotated[
        str | None,
        _option(help="Maven coordinates of jars, GROUP:ARTIFACT:VERSION, comma-separated."),
    ],
    "jars": Annotated[str | None, _option(help="Paths or URLs of jars, comma-separated.")],
    "properties_file": Annotated[
        Path | None, _option(help="File of Spark settings, such as conf/spark-defaults.conf.")
    ],
    "verbose": Annotated[bool, _option("--verbose", help="Show the output of Spark's JVM.")],
}
"""The options that all commands on Spark share."""
_HIDDEN: Final = Annotated[str | None, typer.Option(hidden=True)]


def with_spark(
    command: Callable[..., None] | None = None, *, without: Mapping[str, str] = MappingProxyType({})
) -> Callable[..., Any]:
    """Give a command the options of Spark; it takes them as one argument, `spark`.

    ::

        @with_spark(without={"remote": "it needs a driver of its own: use --master"})
        def overflow(..., *, spark: SparkOptions) -> None:
            with errors_to_exit(), session.opened("wheeld overflow", spark, ui=True) as found:

    Parameters
    ----------
    command : callable
        Its last parameter is `spark`.
    without : mapping
        Options that it does not have, each with the reason, which is the error message.
    """
    if command is None:
        return functools.partial(with_spark, without=without)
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        spark = {name: given.pop(name) for name in _SPARK}
        with errors_to_exit():
            for name, why in without.items():
                if spark[name] is not None:
                    raise UsageError(f"--{name}: {why}")
            spark["conf"] = pairs("--conf", spark["conf"])
            options = SparkOptions(**spark)
        command(**given, spark=options)

    kept = [each for each in own.parameters.values() if each.name != "spark"]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "verbose" else None,
            annotation=_HIDDEN if name in without else _SPARK[name],
        )
        for name in _SPARK
    ]
    vars(run)["__signature__"] = own.replace(parameters=[*kept, *added])
    return run


def pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """KEY=VALUE strings as a dictionary.

    Raises
    ------
    UsageError
        One has no key or no `=`.
    """
    for text in given or ():
        if not text.partition("=")[1] or not text.partition("=")[0].strip():
            raise UsageError(f"{option} {text!r}: expected KEY=VALUE")
    split = (text.split("=", 1) for text in given or ())
    return {key.strip(): value for key, value in split}


@contextmanager
def errors_to_exit() -> Iterator[None]:
    """Print an expected error as one line and exit with 1, or with 2 if an option is wrong.

    Ctrl-C exits with 130.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        typer.echo(
            f"wheeld: this command needs {error.name}, which is not installed: "
            f"{extras.command(extra)}",
            err=True,
        )
        raise typer.Exit(1) from None
    except (WheelError, OSError, ValueError) as error:
        typer.echo(f"wheeld: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None

"""An overflow in a process of its own, which may kill itself at a step of a batch.

    python overflow_child.py STEP OPTION...

STEP: `never`, or a step of the first batch that has expirations: `attempted` (the tasks are done),
`decided` (the manifest is there), `gathered` (the sink's files lie together), `published` (and in
their place). OPTIONS: those of `wheeld pipeline overflow`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from wheeld.cli.app import app
from wheeld_pipeline.overflow import sink
from wheeld_pipeline.overflow.files import LocalFiles
from wheeld_pipeline.overflow.manifest import Ledger, Manifest


def die_at(step: str) -> None:
    """Replace what comes at the step by the end of this process."""

    def die_if(now: bool) -> None:
        if now:
            os.kill(os.getpid(), signal.SIGKILL)

    def busy(manifest: Manifest) -> bool:
        return any(result.counts.get("expired") for result in manifest.results)

    decide, publish, rename = Ledger.decide, sink.publish, LocalFiles.rename

    def decide_or_die(ledger: Ledger, manifest: Manifest) -> None:
        die_if(step == "attempted" and busy(manifest))
        decide(ledger, manifest)
        die_if(step == "decided" and busy(manifest))

    def publish_or_die(out: Any, checkpoint: Any, manifest: Manifest, again: bool) -> None:
        publish(out, checkpoint, manifest, again)
        die_if(step == "published" and busy(manifest))

    def rename_or_die(files: LocalFiles, old: str, new: str) -> bool:
        die_if(step == "gathered" and new.startswith("expired/"))
        return rename(files, old, new)

    Ledger.decide = decide_or_die  # type: ignore[method-assign]
    sink.publish = publish_or_die
    LocalFiles.rename = rename_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    die_at(sys.argv[1])
    app(["pipeline", "overflow", *sys.argv[2:]])

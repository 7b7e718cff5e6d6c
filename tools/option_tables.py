"""Keep the documents' tables of the daemon's options up to date: they are made from the
declarations.

python -m tools.option_tables --check    exit 1 if a file differs from wheeld/config/settings.py
python -m tools.option_tables --write    bring the files up to date
"""

from __future__ import annotations

import json
import re
import sys
import textwrap

from tools.generated import ROOT, settle
from wheeld.config.options import Option
from wheeld.config.settings import OPTIONS

EXAMPLE = ROOT / "systemd/default.toml"
DOCUMENTS = (ROOT / "docs/options.md", ROOT / "docs/trace.md")
NOT_OF_A_SERVICE = ("name", "runtime_dir", "virtual_clock", "virtual_start")
"""The unit gives the first two; a service's time is real."""
_BLOCK = re.compile(r"(<!-- options ?(?P<section>[\w ]*) -->\n).*?(<!-- end -->)", re.S)


def _row(option: Option) -> str:
    flag = " ".join(filter(None, (option.flag, option.metavar))).replace("|", "\\|")
    meaning = " ".join(
        filter(
            None, (option.help, option.more, f"{option.bounds.capitalize()}." * bool(option.bounds))
        )
    )
    live = " SIGHUP reloads it." * option.live
    return f"| `{flag}` | `{option.key}` | {option.shown_default} | {meaning}{live} |\n"


def table(section: str) -> str:
    rows = (_row(option) for option in OPTIONS.values() if option.section == section)
    return "| option | key | default | |\n| --- | --- | --- | --- |\n" + "".join(rows)


def render(document: str) -> str:
    """The document with every block made anew: of one section, or of all of them."""

    def block(match: re.Match[str]) -> str:
        sections = dict.fromkeys(option.section for option in OPTIONS.values())
        found = "\n".join(f"## {section}\n\n{table(section)}" for section in sections)
        return (
            match[1] + (table(match["section"]) if match["section"] else f"\n{found}\n") + match[3]
        )

    return _BLOCK.sub(block, document)


def example() -> str:
    """A TOML file with all defaults, and with an example for each option without one."""
    parts = ["# /etc/wheeld/NAME.toml: options of the daemon NAME. Every key may be left out.\n"]
    for option in OPTIONS.values():
        if option.key not in NOT_OF_A_SERVICE:
            text = textwrap.wrap(f"{option.help} {option.more}", 98, break_on_hyphens=False)
            value = option.default if option.default not in (None, ()) else option.example
            line = f"{option.key} = {json.dumps(value)}"
            shown = line if value == option.default else f"# {line}"
            parts.append("\n".join([*(f"# {line}" for line in text), shown]) + "\n")
    return "\n".join(parts)


def main() -> int:
    fresh = {path: render(path.read_text()) for path in DOCUMENTS} | {EXAMPLE: example()}
    return settle(fresh, "option_tables", __doc__)


if __name__ == "__main__":
    sys.exit(main())

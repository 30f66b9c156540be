"""The table of flags as ``--help`` shows it and as docs/cli.md prints it."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from corral.cli.flags import FLAGS, Flag
from corral.cli.kinds import SWITCH

WIDTH = 100
_INDENT = 34

USAGE = """\
usage: corral [serve] [flags]   serve a model over HTTP (the default command)
       corral bench [flags]     measure a running server
       corral version           print the versions of corral and of what it runs on

Flags are llama-server's. The variables in brackets set them, too; a flag beats its variable.
"""


def help_text() -> str:
    """All of ``corral --help``, at most 100 columns wide."""
    blocks = ["\n".join([f"{group}:", *_lines(flags)]) for group, flags in FLAGS.items()]
    return "\n\n".join([USAGE.rstrip(), *blocks]) + "\n"


def _lines(flags: tuple[Flag, ...]) -> Iterator[str]:
    for flag in flags:
        text = wrap(" ".join([flag.help, *_remarks(flag)]), WIDTH - _INDENT)
        left = wrap(_spelling(flag), _INDENT - 3, break_on_hyphens=False)
        for at in range(max(len(left), len(text))):
            column = ("  " + left[at] if at == 0 else "    " + left[at]) if at < len(left) else ""
            yield f"{column:<{_INDENT}}{text[at] if at < len(text) else ''}".rstrip()


def _spelling(flag: Flag) -> str:
    return ", ".join([*flag.names, *flag.negatives]) + (f" {flag.kind.metavar}" if flag.kind.metavar else "")


def _remarks(flag: Flag) -> Iterator[str]:
    default = default_text(flag)
    if default:
        yield f"(default: {default})"
    if flag.env:
        yield f"[{flag.env}]"


def default_text(flag: Flag) -> str:
    """The default as a user would write it; empty where there is none."""
    value: Any = flag.default
    if flag.kind is SWITCH:
        return {True: "on", False: "off"}.get(value, "")
    if isinstance(value, tuple):
        return (";" if flag.name == "--samplers" else " ").join(str(v).replace("\n", "\\n") for v in value)
    return "" if value in (None, "") or value == {} else str(value)


def reference_page() -> str:
    """The text of docs/cli.md."""
    blocks = [_PAGE_HEAD]
    for group, flags in FLAGS.items():
        rows = ["| flag | default | environment | meaning |", "|---|---|---|---|", *map(_row, flags)]
        blocks.append(f"## {group}\n\n" + "\n".join(rows) + "\n")
    return "\n".join([*blocks, _PAGE_TAIL])


def _row(flag: Flag) -> str:
    names = " ".join(f"`{name}`" for name in (*flag.names, *flag.negatives))
    metavar = f" {_cell(flag.kind.metavar)}" if flag.kind.metavar else ""
    default, env = default_text(flag), f"`{flag.env}`" if flag.env else ""
    meaning = flag.help + (f" (no effect: {flag.note})" if flag.note else "") + (" (corral's own)" if flag.own else "")
    return f"| {names}{metavar} | {f'`{_cell(default)}`' if default else ''} | {env} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_PAGE_HEAD = """\
# The command line

`corral [serve] [flags]` serves a model; `corral bench` measures a server; `corral version` prints versions.
This page is made from the table in `src/corral/cli/flags.py` by `make docs`; a test compares the two.

The flags are those of llama-server. `_` in a long flag reads as `-`, `--flag=value` is the same as `--flag value`, and
of a repeated flag the last one counts, with a warning. A variable of the environment sets the flag beside it; switches
take `1 true on enabled yes` or `0 false off disabled no`, and a switch with a negative form has a second variable,
`LLAMA_ARG_NO_...`. A flag beats its variable.

An unknown flag, a bad value or a flag of llama-server that corral does not have ends the program with exit code 2 and
one line that says which. A file or folder that cannot be used, or a port in use, ends it with exit code 1 before the
model is loaded; so does a model that cannot be loaded.

`Ctrl-C` or SIGTERM lets running requests finish for at most `--drain-s`; meanwhile new ones and `/health` get a 503. A
second one stops at once.
"""

_PAGE_TAIL = """\
## How sizes are resolved

- `-np` not given: 4 slots on unified KV, where any slot may use the whole context.
- `-np N`: each slot has its part of the context (split KV). With a sliding window or recurrent layers up to 8 slots
  share it still, more do not. `-kvu` and `-no-kvu` choose, with `-np` or without.
- `-c 0`: the model's training context. A conversation never gets more than that.
- Rows of the KV cache: as many as slots on split KV; on unified KV twice the slots and 8 more, 256 at most.
"""

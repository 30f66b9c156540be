"""The program ``corral``: picks the command and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from corral.cli.help import help_text
from corral.cli.parse import UsageError, parse
from corral.errors import CorralError

HELP_FLAGS = frozenset({"-h", "--help", "--usage"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Exit code: 0 done, 1 it failed, 2 the command line is wrong, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read has gone; nothing is to be flushed at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        print(f"error: {error}\nSee corral --help.", file=sys.stderr)
        return 2
    except CorralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(words: list[str]) -> int:
    command, rest = (words[0], words[1:]) if words and not words[0].startswith("-") else ("serve", words)
    if command == "bench":
        from corral.bench import main as bench

        return bench(rest)
    if command == "version" or "--version" in rest:
        from corral.cli.commands.version import version

        return version()
    if command == "help" or HELP_FLAGS.intersection(rest):
        print(help_text(), end="")
        return 0
    if command != "serve":
        meant = f"did you mean -m {command}?" if command.endswith(".gguf") else "serve, bench or version"
        raise UsageError(f"unknown command {command!r} ({meant})")
    args = parse(rest, os.environ)
    # Imported late: help and usage errors do not wait for libllama and the web framework.
    from corral.cli.commands.serve import serve

    return serve(args)


if __name__ == "__main__":
    sys.exit(main())

"""The help fits a terminal and the page fits the table."""

from __future__ import annotations

from pathlib import Path

from corral.cli.flags import FLAGS
from corral.cli.help import WIDTH, help_text, reference_page

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def test_the_help_names_every_flag_and_variable_within_its_width() -> None:
    text = help_text()
    for flag in (flag for group in FLAGS.values() for flag in group):
        assert all(name in text for name in (*flag.names, *flag.negatives, flag.env))
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), "run `make docs`"

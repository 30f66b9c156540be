"""What became of schemas is remembered, and takes no more memory for that than it may."""

from __future__ import annotations

import tracemalloc

from corral.chat.tool_schemas import MAX_REMEMBERED, ToolSchemas
from corral.chat.tools import Tools, read_tools


def tools(number: int, n_chars: int) -> Tools:
    schema = {"type": "object", "title": f"{number}{'x' * n_chars}"}
    return read_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])


def test_a_schema_that_is_too_large_is_not_kept_and_pushes_out_no_other() -> None:
    schemas = ToolSchemas()
    for _ in range(2):
        schemas.held(tools(1, 100))
        schemas.held(tools(2, 2 * MAX_REMEMBERED))
    assert [known.n_chars < 1000 for known in schemas._known.values()] == [True]
    assert schemas._n_chars == sum(known.n_chars for known in schemas._known.values())


def test_many_long_schemas_do_not_fill_the_memory() -> None:
    schemas = ToolSchemas()
    tracemalloc.start()
    try:
        for i in range(40):
            schemas.held(tools(i, MAX_REMEMBERED // 10))
        schemas.held(tools(0, 2 * MAX_REMEMBERED))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * MAX_REMEMBERED

"""Blocks of a reply as items of a response."""

from __future__ import annotations

from corral.api.dialects.blocks import Block
from corral.api.dialects.parts import Json
from corral.api.schemas.items import CALL_PREFIX

_PREFIXES = {"thoughts": "rs", "text": "msg", "call": "fc"}


def item_id(block: Block, key: str) -> str:
    """``key`` belongs to the response."""
    return f"{_PREFIXES[block.kind]}_{key}{block.index:02d}"


def item_json(block: Block, item: str, status: str, *, is_whole: bool = False) -> Json:
    """Without what it holds, unless it is ``is_whole``."""
    part = part_json(block) if is_whole else None
    content = [part] if part else []
    match block.kind:
        case "thoughts":
            head: Json = {"id": item, "type": "reasoning", "summary": [], "content": content}
            return {**head, "encrypted_content": "", "status": status}
        case "text":
            return {"id": item, "type": "message", "role": "assistant", "status": status, "content": content}
        case "call":
            call: Json = {"id": item, "type": "function_call", "call_id": CALL_PREFIX + block.id, "name": block.name}
            return {**call, "arguments": block.text if is_whole else "", "status": status}


def part_json(block: Block) -> Json | None:
    """The one content part of an item; calls have none."""
    match block.kind:
        case "thoughts":
            return {"type": "reasoning_text", "text": block.text}
        case "text":
            return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": block.logprobs}
        case "call":
            return None


def empty_part(block: Block) -> Json | None:
    """The same before any text."""
    return part_json(Block(block.index, block.kind))

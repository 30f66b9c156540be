"""What wire formats with server-sent events share."""

from __future__ import annotations

import orjson

from corral.api.dialects.parts import Json
from corral.api.errors import error_body
from corral.errors import CorralError

COMMENT = b":\n\n"
"""A line that clients skip."""


class ServerSentEvents:
    """Silence and failure as llama-server and OpenAI's chat tell them."""

    media_type = "text/event-stream"

    def ping(self) -> bytes:
        return COMMENT

    def fail(self, error: CorralError) -> bytes:
        return b"data: %b\n\n" % error_body(error)


def named_event(name: str, body: Json) -> bytes:
    """An event whose ``type`` is its name, too."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **body}))

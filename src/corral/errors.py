"""Every error a user can meet, with the type and code of llama-server's wire format.

CorralError
├── InvalidRequest        400 invalid_request_error
│   ├── ExceedContext     400 exceed_context_size_error (adds n_prompt_tokens, n_ctx)
│   ├── RequestTimeout    408 invalid_request_error
│   └── TooLarge          413 invalid_request_error
├── AuthenticationError   401 authentication_error
├── NotFound              404 not_found_error
├── ServerError           500 server_error
│   └── DecodeFailed      500 server_error: the forward pass of this task's batch failed
├── NotSupported          501 not_supported_error
├── Unavailable           503 unavailable_error (may carry retry_after_s)
│   └── Closed            503 unavailable_error: what was asked has been closed
└── LoadError             the model cannot be loaded; never reaches HTTP
"""

from __future__ import annotations

from typing import ClassVar

MAX_TOLD = 2000
"""Characters of a message that a user is told."""


class CorralError(Exception):
    """Base of all errors that are told to a user. ``str(error)`` is the message."""

    code: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    @property
    def extra(self) -> dict[str, int]:
        """Further members of the wire format's ``error`` object."""
        return {}

    @property
    def told(self) -> str:
        """The message, without its middle if it is long: many repeat what was sent."""
        text = str(self)
        n_left_out = len(text) - MAX_TOLD
        half = MAX_TOLD // 2
        return text if n_left_out <= 0 else f"{text[:half]} [{n_left_out} characters left out] {text[-half:]}"


class InvalidRequest(CorralError):
    """The request is wrong; sending it again will not help."""

    code = 400
    type = "invalid_request_error"


class ExceedContext(InvalidRequest):
    """The prompt cannot fit, alone, in what a slot may use."""

    type = "exceed_context_size_error"

    def __init__(self, n_prompt_tokens: int, n_ctx: int, *, or_more: bool = False) -> None:
        """``or_more``: the prompt was not tokenized, it has at least so many tokens."""
        self.n_shown = f"at least {n_prompt_tokens}" if or_more else f"{n_prompt_tokens}"
        super().__init__(
            f"request ({self.n_shown} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx

    @property
    def extra(self) -> dict[str, int]:
        return {"n_prompt_tokens": self.n_prompt_tokens, "n_ctx": self.n_ctx}


class RequestTimeout(InvalidRequest):
    """The client took too long to say what it wants."""

    code = 408


class TooLarge(InvalidRequest):
    """The request's body is larger than what is read."""

    code = 413

    def __init__(self, n_bytes: int, limit_bytes: int, *, or_more: bool = False) -> None:
        """``or_more``: so many bytes had come when no more were read."""
        size = f"at least {n_bytes}" if or_more else f"{n_bytes}"
        super().__init__(
            f"the request body has {size} bytes; at most {limit_bytes} are read: send less, or start the server with a "
            "larger --max-body-mib"
        )


class AuthenticationError(CorralError):
    """No API key, or one that is not known."""

    code = 401
    type = "authentication_error"


class NotFound(CorralError):
    """No such path or object."""

    code = 404
    type = "not_found_error"


class ServerError(CorralError):
    """Something failed here; the request may have been fine."""


class DecodeFailed(ServerError):
    """The forward pass that held this task's tokens failed."""


class NotSupported(CorralError):
    """This endpoint is switched off, or the model cannot do it."""

    code = 501
    type = "not_supported_error"


class Unavailable(CorralError):
    """Not now: loading, shutting down, or the queue is full."""

    code = 503
    type = "unavailable_error"

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Closed(Unavailable):
    """An LLM or a model that was closed is asked for something."""


class LoadError(CorralError):
    """The model or context cannot be made; the message names the file and the reason."""

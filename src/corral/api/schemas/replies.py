"""Models of replies for the OpenAPI page; the dialects build the real ones."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Healthy(BaseModel):
    """The model is loaded."""

    status: Literal["ok"]


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: int
    message: str
    type: str


class ErrorReply(BaseModel):
    """The body of every answer that is not 2xx."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"error": {"code": 400, "message": "key 'prompt' not found", "type": "invalid_request_error"}}
        }
    )
    error: ErrorDetail


class Tokens(BaseModel):
    """Ids, or objects with id and piece."""

    tokens: list[int] | list[dict[str, Any]]


class Content(BaseModel):
    """The text of tokens."""

    content: str


class PromptText(BaseModel):
    """A rendered conversation."""

    prompt: str


class InputTokens(BaseModel):
    """How long a prompt is."""

    input_tokens: int
    object: Literal["response.input_tokens"]


class Controlled(BaseModel):
    """Whether there was something to act on; if not, why."""

    success: bool
    message: str = ""


class MessageTokens(BaseModel):
    """How long the prompt of a Messages request is."""

    input_tokens: int


class MessageReply(BaseModel):
    """The reply of POST /v1/messages; ``input_tokens`` of its usage are those that had to be computed."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: dict[str, int]


class ResponseReply(BaseModel):
    """The reply of POST /v1/responses."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class OllamaReply(BaseModel):
    """The end of an answer; durations are nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class OllamaChatReply(OllamaReply):
    """The reply of POST /api/chat."""

    message: dict[str, Any]


class OllamaGenerateReply(OllamaReply):
    """The reply of POST /api/generate."""

    response: str
    thinking: str = ""


class TimingsReply(BaseModel):
    """Counts and milliseconds; ``cache_n + prompt_n`` is the prompt's length."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class NativeReply(BaseModel):
    """The final object of POST /completion; several prompts or choices give an array of them."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["none", "eos", "word", "limit"]
    stopping_word: str
    tokens_cached: int
    timings: TimingsReply
    completion_probabilities: list[dict[str, Any]] = []


class Usage(BaseModel):
    """Prompt tokens are counted once for all choices."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class TextChoice(BaseModel):
    """One completion."""

    text: str
    index: int
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class ChatMessage(BaseModel):
    """The answer; ``content`` is null where there are only calls."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str = ""
    tool_calls: list[dict[str, Any]] = []


class ChatChoice(BaseModel):
    """One answer."""

    finish_reason: Literal["stop", "length", "tool_calls"]
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None = None


class _OpenAIReply(BaseModel):
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    id: str
    timings: TimingsReply


class TextReply(_OpenAIReply):
    """The reply of POST /v1/completions."""

    choices: list[TextChoice]
    object: Literal["text_completion"]


class ChatReply(_OpenAIReply):
    """The reply of POST /v1/chat/completions."""

    choices: list[ChatChoice]
    object: Literal["chat.completion"]

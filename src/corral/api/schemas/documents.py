"""Models of request bodies for the OpenAPI page. They document; ``params``, ``prompt`` and ``chat`` do the reading."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

PromptDocument = str | list[int | str | list[int | str]]


class AdapterScale(BaseModel):
    """How strongly a LoRA adapter acts."""

    id: int = Field(ge=0, description="As in GET /lora-adapters.")
    scale: float = 0.0


class AdapterScales(RootModel[list[AdapterScale]]):
    """POST /lora-adapters."""


class CompletionFields(BaseModel):
    """Fields of every completion request. A null counts as absent; unknown fields are ignored."""

    n_predict: int = Field(-1, ge=-1, description="Tokens to generate; aliases max_completion_tokens, max_tokens.")
    n: int = Field(1, ge=1, description="Replies to each prompt, at most the number of slots; alias n_cmpl.")
    stream: bool = False
    stream_options: dict[str, Any] | None = Field(None, description="include_usage: true adds a chunk with usage.")
    stop: str | list[str] | None = Field(None, description="The text ends before the first of these.")
    temperature: float = Field(0.8, description="0 takes the likeliest token.")
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    repeat_last_n: int = Field(64, ge=0)
    repeat_penalty: float = Field(1.0, gt=0)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = Field(2, ge=0)
    dry_penalty_last_n: int = Field(64, ge=0)
    dry_sequence_breakers: list[str] = ["\n", ":", '"', "*"]
    mirostat: int = Field(0, ge=0, le=2)
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = Field(-1.0, le=1)
    adaptive_decay: float = Field(0.9, ge=0, le=0.99)
    seed: int = Field(-1, description="-1 draws one; with n > 1 reply i uses seed + i.")
    samplers: list[str] | str | None = Field(
        None, description="Names in order, or their letters; unknown ones are left out."
    )
    logit_bias: dict[str, float | bool] | list[list[Any]] | None = Field(
        None, description="Token id or text to a bias; false bans."
    )
    ignore_eos: bool = False
    grammar: str = Field("", description="GBNF that the text must match.")
    grammar_lazy: bool = Field(False, description="What the text must match begins with one of grammar_triggers.")
    grammar_triggers: list[dict[str, Any]] = Field(
        [], description="Objects with value and type: 0 token, 1 word, 2 pattern, 3 pattern that matches all the text."
    )
    json_schema: dict[str, Any] | str | None = Field(None, description="Schema that the text obeys.")
    response_format: dict[str, Any] | None = Field(None, description="As OpenAI's: text, json_object, json_schema.")
    regex: str = Field("", description="What the whole text must match.")
    lark: str = Field("", description="A lark grammar, as llguidance reads it, that the text must match.")
    reasoning_budget_tokens: int = Field(
        -1,
        ge=-1,
        description="After so many tokens thoughts are ended; 0: at once, -1: as --reasoning-budget says. "
        "For a prompt the two fields below say what thoughts are.",
    )
    reasoning_budget_start_tag: str = Field("", description="What begins thoughts; in chat the model's template says.")
    reasoning_budget_end_tags: list[str] = Field([], description="What ends them; the first is what they are ended by.")
    reasoning_budget_message: str = Field("", description="Text that comes before it.")
    reasoning_control: bool = Field(False, description="POST /v1/chat/completions/control may end thoughts.")
    generation_prompt: str = Field("", description="The end of the prompt, if thoughts are open there.")
    n_probs: int = Field(0, ge=0, description="Show the probabilities of that many likeliest tokens.")
    post_sampling_probs: bool = False
    min_keep: int = Field(0, ge=0)
    n_keep: int = Field(0, ge=-1, description="First tokens that a context shift keeps; -1: the prompt.")
    n_discard: int = Field(0, ge=0, description="Tokens behind them that it drops; 0: half of the rest.")
    n_cache_reuse: int = Field(
        0,
        ge=0,
        description="Chunks of at least so many tokens that the conversation holds further on are moved instead of "
        "computed, which is approximate; 0: none.",
    )
    n_indent: int = Field(0, ge=0)
    t_max_predict_ms: int = Field(-1, ge=-1)
    cache_prompt: bool = True
    lora: list[AdapterScale] = Field(
        [], description="LoRA adapters for this request; those not named get scale 0. Empty: the server's default."
    )
    cache_salt: str = Field(
        "",
        description="Prefixes are shared only between requests with the same salt, and of the same API key unless "
        "--shared-cache is given: neither cached_tokens nor time tells one what others asked.",
    )
    priority: int | None = Field(
        None,
        ge=-100,
        le=100,
        description="Higher is more urgent: it goes first, and takes slots and KV cells from running requests of lower "
        "priority, which are parked and go on later. Default: that of the API key, else 0.",
    )
    id_slot: int = -1
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    sse_ping_interval: int = Field(30, ge=-1, description="Seconds of silence before a comment; <= 0: none.")
    response_fields: list[str] = Field([], description="Keys of the final object to answer; a/b digs.")
    verbose: bool = False


class NativeRequest(CompletionFields):
    """POST /completion."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"prompt": "The capital of France is", "n_predict": 16, "temperature": 0}}
    )
    prompt: PromptDocument = Field(description="Text, token ids, both mixed, or a list of such prompts.")


class CompletionRequest(CompletionFields):
    """POST /v1/completions."""

    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "Once upon a time", "max_tokens": 32}})
    model: str = Field("", description="Not used: there is one model.")
    prompt: PromptDocument
    logprobs: int | None = Field(None, description="Show the probabilities of that many likeliest tokens.")
    echo: bool = Field(False, description="Repeat the prompt; with logprobs its log-probabilities are shown, too.")


class ChatFields(BaseModel):
    """A conversation and how to turn it into a prompt."""

    messages: list[dict[str, Any]] = Field(description="Objects with role and content (text, or a list of text parts).")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the template.")
    add_generation_prompt: bool = True
    continue_final_message: bool | Literal["content", "reasoning_content"] = False
    tools: list[dict[str, Any]] | None = Field(None, description="Objects {type: function, function: {name, ...}}.")
    tool_choice: str | dict[str, Any] | None = Field(None, description="auto, none, required, or a function.")
    parallel_tool_calls: bool | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = None
    reasoning_effort: str | None = Field(None, description="For the template; none: no thoughts.")


class ChatRequest(CompletionFields, ChatFields):
    """POST /v1/chat/completions."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"messages": [{"role": "user", "content": "What is a llama?"}], "max_tokens": 64}}
    )
    model: str = Field("", description="Not used: there is one model.")
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0)
    thinking_budget_tokens: int = Field(-1, ge=-1, description="The same as reasoning_budget_tokens.")
    echo: bool = Field(False, description="Repeat the text of the assistant's last message that is continued.")


class ControlRequest(BaseModel):
    """POST /v1/chat/completions/control."""

    model_config = ConfigDict(json_schema_extra={"example": {"id": "chatcmpl-x", "action": "reasoning_end"}})
    id: str = Field(description="Of a reply that is being streamed and was asked for with reasoning_control.")
    action: Literal["reasoning_end"]


class TemplateRequest(ChatFields):
    """POST /apply-template and the token counts."""

    model_config = ConfigDict(json_schema_extra={"example": {"messages": [{"role": "user", "content": "Hello"}]}})


class MessagesRequest(BaseModel):
    """POST /v1/messages; the sampling fields of the other routes are read, too."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"max_tokens": 64, "messages": [{"role": "user", "content": "What is a llama?"}]}}
    )
    model: str = Field("", description="Not used: there is one model.")
    messages: list[dict[str, Any]] = Field(description="Roles user and assistant; content is text or blocks.")
    system: str | list[dict[str, Any]] | None = None
    max_tokens: int = Field(4096, ge=1)
    stop_sequences: list[str] = []
    stream: bool = False
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    tools: list[dict[str, Any]] = Field([], description="Objects with name, description and input_schema.")
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = Field(None, description="type: enabled, adaptive or disabled; budget_tokens.")


class ResponsesRequest(BaseModel):
    """POST /v1/responses; the sampling fields of the other routes are read, too."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": "What is a llama?", "max_output_tokens": 64}})
    model: str = Field("", description="Not used: there is one model.")
    input: str | list[dict[str, Any]] = Field(
        description="Text, or items: message, reasoning, function_call, function_call_output."
    )
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    previous_response_id: str | None = Field(None, description="Needs --responses-store.")
    store: bool = True
    stream: bool = False
    temperature: float = 0.8
    top_p: float = 0.95
    tools: list[dict[str, Any]] = Field([], description="Functions; other types are never called.")
    tool_choice: str | dict[str, Any] = "auto"
    text: dict[str, Any] | None = Field(None, description="format: text, json_object or json_schema.")
    reasoning: dict[str, Any] | None = Field(None, description="effort.")
    include: list[str] = Field([], description="message.output_text.logprobs: log-probabilities of the text's tokens.")
    top_logprobs: int = Field(0, ge=0, le=20, description="Show so many of the likeliest tokens in each place.")


class OllamaFields(BaseModel):
    """What both of Ollama's completing routes take."""

    model: str = Field("", description="Not used: there is one model.")
    stream: bool = True
    options: dict[str, Any] = Field({}, description="temperature, top_k, num_predict, stop, seed, ...")
    format: Literal["", "json"] | dict[str, Any] | None = Field(None, description="json, or a JSON schema.")
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: float | str | None = Field(None, description="Not used: the model stays.")


class OllamaChatRequest(OllamaFields):
    """POST /api/chat."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"messages": [{"role": "user", "content": "What is a llama?"}], "stream": False}}
    )
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []


class OllamaGenerateRequest(OllamaFields):
    """POST /api/generate."""

    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "What is a llama?", "stream": False}})
    prompt: str
    system: str = ""
    raw: bool = Field(False, description="The prompt goes to the model as it is.")


class OllamaShowRequest(BaseModel):
    """POST /api/show."""

    model_config = ConfigDict(json_schema_extra={"example": {"model": "any"}})
    model: str = ""


class StreamLookup(BaseModel):
    """POST /v1/streams/lookup."""

    model_config = ConfigDict(json_schema_extra={"example": {"conversation_ids": ["c1"]}})
    conversation_ids: list[str] = Field(description="As the requests' header X-Conversation-Id names them.")


class TokenizeRequest(BaseModel):
    """POST /tokenize."""

    model_config = ConfigDict(json_schema_extra={"example": {"content": "Hello world", "with_pieces": True}})
    content: str | list[int | str] = ""
    add_special: bool = Field(False, description="Add the beginning-of-text token where the vocabulary wants it.")
    parse_special: bool = Field(True, description="Read control tokens in the text.")
    with_pieces: bool = False


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(json_schema_extra={"example": {"tokens": [1, 2, 3]}})
    tokens: list[int] = []


class SlotFileRequest(BaseModel):
    """POST /slots/{id_slot}?action=save or restore; erase needs no body."""

    model_config = ConfigDict(json_schema_extra={"example": {"filename": "chat.bin"}})
    filename: str = Field(description="A plain name in the folder of --slot-save-path.")
    cache_salt: str = Field("", description="Restore: requests with this salt meet what is restored.")


class PrefixRequest(BaseModel):
    """POST /cache/warm: one of tokens, prompt and messages."""

    model_config = ConfigDict(json_schema_extra={"example": {"messages": [{"role": "system", "content": "Be brief."}]}})
    prompt: str | list[int | str] | None = None
    tokens: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    cache_salt: str = Field("", description="Requests with this salt meet the prefix.")
    lora: list[AdapterScale] = Field([], description="Requests with these adapters meet it. Default: the server's.")


class PinRequest(PrefixRequest):
    """POST /cache/pin."""

    pinned: bool = Field(True, description="false, with the id of a pin: it may be evicted again.")
    id: str = ""

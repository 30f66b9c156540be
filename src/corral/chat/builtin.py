"""Templates by name, as ``--chat-template`` takes them: llama-server's, written as Jinja.

Most print each message between two texts of its role; BOS is left to the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""What is used where a model has no template of its own."""

Around = tuple[str, str]

_PLAIN, _TRIMMED = "message.content", "(message.content | trim)"


def _text(text: str) -> str:
    """A Jinja string."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _print(*expressions: str) -> str:
    return f"{{{{- {' ~ '.join(expressions)} -}}}}"


def _asking(text: str) -> str:
    return f"{{%- if add_generation_prompt -%}}{_print(_text(text))}{{%- endif -%}}" if text else ""


def _turns(generation: str, roles: Mapping[str, Around], *, head: str = "", trim: str = "") -> str:
    """Messages between the texts of their role; roles that are not given are left out. ``trim``: roles, or "all"."""
    body, word = "", "if"
    for role, (before, after) in roles.items():
        content = "message.content | trim" if trim == "all" or role in trim.split() else "message.content"
        body += f"{{%- {word} message.role == '{role}' -%}}" + _print(_text(before), f"({content})", _text(after))
        word = "elif"
    return (
        _print(_text(head)) if head else ""
    ) + f"{{%- for message in messages -%}}{body}{{%- endif -%}}{{%- endfor -%}}{_asking(generation)}"


def _every(
    before: str, between: str, after: str, generation: str, *, content: str = "message.content", head: str = ""
) -> str:
    """All roles alike, with the role's name between two texts."""
    text = _print(_text(before), "message.role", _text(between), f"({content})", _text(after))
    start = _print(_text(head)) if head else ""
    return f"{start}{{%- for message in messages -%}}{text}{{%- endfor -%}}{_asking(generation)}"


def _in_turns(
    start: str, again: str, system: Around, user_end: str, assistant: Around, content: str, reply: str
) -> str:
    """Turns of a system text, a user's and an answer; ``start`` opens the first turn, ``again`` the others."""
    opening = _print(f"{_text(start)} if loop.first else {_text(again)}")
    return (
        "{%- set turn = namespace(open=false) -%}{%- for message in messages -%}"
        + f"{{%- if not turn.open -%}}{opening}{{%- set turn.open = true -%}}{{%- endif -%}}"
        + f"{{%- if message.role == 'system' -%}}{_print(_text(system[0]), content, _text(system[1]))}"
        + f"{{%- elif message.role == 'user' -%}}{_print(content, _text(user_end))}"
        + f"{{%- else -%}}{_print(_text(assistant[0]), reply, _text(assistant[1]))}"
        + "{%- set turn.open = false -%}{%- endif -%}{%- endfor -%}"
    )


def _llama2(system: Around, *, bos: bool = False, strip: bool = False) -> str:
    content = _TRIMMED if strip else _PLAIN
    again = "<s>[INST] " if bos else "[INST] "
    return _in_turns("[INST] ", again, system, " [/INST]", ("", "</s>"), content, content)


def _mistral(lead: str, trail: str, *, trim: bool = False) -> str:
    """Versions 1 to 3: the system text stands in the turn of the user who follows."""
    start, reply = f"{lead}[INST]{trail}", _TRIMMED if trim else _PLAIN
    return _in_turns(start, start, ("", "\n\n"), f"{lead}[/INST]", (trail, "</s>"), _PLAIN, reply)


def _held_system(user: Around, assistant: Around, generation: str, *, trim: bool = False) -> str:
    """The system text is kept for the next message of the user."""
    content = _TRIMMED if trim else _PLAIN
    held = _print("held.text", _text("\n\n"))
    return (
        "{%- set held = namespace(text='') -%}{%- for message in messages -%}"
        + f"{{%- if message.role == 'system' -%}}{{%- set held.text = held.text ~ {content} -%}}"
        + f"{{%- elif message.role == 'user' -%}}{_print(_text(user[0]))}"
        + f"{{%- if held.text -%}}{held}{{%- set held.text = '' -%}}{{%- endif -%}}{_print(content, _text(user[1]))}"
        + f"{{%- else -%}}{_print(_text(assistant[0]), content, _text(assistant[1]))}"
        + f"{{%- endif -%}}{{%- endfor -%}}{_asking(generation)}"
    )


def _bailing(generation: str, *, after: str = "", default: str = "") -> str:
    role = "('HUMAN' if message.role == 'user' else message.role | upper)"
    text = _print("'<role>'", role, "'</role>'", _PLAIN, _text(after))
    start = f"{{%- if messages[0].role != 'system' -%}}{_print(_text(default))}{{%- endif -%}}" if default else ""
    return f"{start}{{%- for message in messages -%}}{text}{{%- endfor -%}}{_asking(generation)}"


def _granite(tool_call: str) -> str:
    usual = "'<|start_of_role|>' ~ message.role ~ '<|end_of_role|>'"
    head = f"({_text(tool_call)} if message.role == 'assistant_tool_call' else {usual})"
    text = _print(head, _PLAIN, _text("<|end_of_text|>\n"))
    return f"{{%- for message in messages -%}}{text}{{%- endfor -%}}" + _asking(
        "<|start_of_role|>assistant<|end_of_role|>"
    )


def _trimmed(before: str, between: str, after: str, generation: str) -> str:
    return _every(before, between, after, generation, content="message.content | trim")


def _mistral_7(space: str) -> str:
    return _turns(
        "",
        {
            "system": (f"[SYSTEM_PROMPT]{space}", "[/SYSTEM_PROMPT]"),
            "user": (f"[INST]{space}", "[/INST]"),
            "assistant": (space, "</s>"),
        },
    )


def _exaone(before: str, between: str, after: str, generation: str, user_after: str, *, tool: bool = True) -> str:
    roles = {role: (f"{before}{role}{between}", after) for role in ("system", "user", "assistant", "tool")}
    roles["user"] = (roles["user"][0], user_after)
    if not tool:
        del roles["tool"]
    return _turns(generation, roles, trim="all")


_COHERE = "<|START_OF_TURN_TOKEN|>"
_OPENCHAT = (
    "{%- for message in messages -%}{%- if message.role == 'system' -%}"
    "{{- message.content ~ '<|end_of_turn|>' -}}{%- else -%}"
    "{{- 'GPT4 Correct ' ~ (message.role | capitalize) ~ ': ' ~ message.content ~ '<|end_of_turn|>' -}}"
    "{%- endif -%}{%- endfor -%}" + _asking("GPT4 Correct Assistant:")
)
_GIGACHAT = (
    "{{- '<s>' -}}{%- for message in messages -%}{%- if message.role == 'system' and loop.first -%}"
    "{{- message.content ~ '<|message_sep|>' -}}{%- elif message.role == 'user' -%}"
    "{{- 'user<|role_sep|>' ~ message.content ~ '<|message_sep|>available functions<|role_sep|>[]<|message_sep|>' -}}"
    "{%- elif message.role == 'assistant' -%}"
    "{{- 'assistant<|role_sep|>' ~ message.content ~ '<|message_sep|>' -}}"
    "{%- endif -%}{%- endfor -%}" + _asking("assistant<|role_sep|>")
)
_HUNYUAN_DENSE = (
    "{%- for message in messages -%}{%- if message.role == 'system' and loop.first -%}"
    "{{- message.content ~ '<｜hy_place▁holder▁no▁3｜>' -}}{%- elif message.role == 'assistant' -%}"
    "{{- '<｜hy_Assistant｜>' ~ message.content ~ '<｜hy_place▁holder▁no▁2｜>' -}}{%- elif message.role == 'user' -%}"
    "{{- '<｜hy_User｜>' ~ message.content ~ '<｜hy_Assistant｜>' -}}{%- endif -%}{%- endfor -%}"
)
_HUNYUAN_VL = (
    "{{- '<｜hy_begin▁of▁sentence｜>' -}}{%- for message in messages -%}"
    "{%- if message.role == 'system' and loop.first -%}{{- message.content ~ '<｜hy_place▁holder▁no▁3｜>' -}}"
    "{%- elif message.role == 'user' -%}{{- message.content ~ '<｜hy_User｜>' -}}"
    "{%- elif message.role == 'assistant' -%}{{- message.content ~ '<｜hy_Assistant｜>' -}}{%- endif -%}{%- endfor -%}"
)
_RWKV = (
    "{%- for message in messages -%}{%- if message.role == 'system' -%}"
    "{{- 'System: ' ~ (message.content | trim) ~ '\\n\\n' -}}{%- elif message.role == 'user' -%}"
    "{{- 'User: ' ~ (message.content | trim) ~ '\\n\\n' -}}{%- if loop.last -%}{{- 'Assistant:' -}}{%- endif -%}"
    "{%- elif message.role == 'assistant' -%}{{- 'Assistant: ' ~ (message.content | trim) ~ '\\n\\n' -}}"
    "{%- endif -%}{%- endfor -%}"
)
_MONARCH = (
    "{%- for message in messages -%}"
    "{{- ('' if loop.first else '<s>') ~ message.role ~ '\\n' ~ message.content ~ '</s>\\n' -}}"
    "{%- endfor -%}" + _asking("<s>assistant\n")
)
_PANGU = "{%- if messages[0].role != 'system' -%}{{- '[unused9]系统：[unused10]' -}}{%- endif -%}" + _turns(
    "[unused9]助手：",
    {
        "system": ("[unused9]系统：", "[unused10]"),
        "user": ("[unused9]用户：", "[unused10]"),
        "assistant": ("[unused9]助手：", "[unused10]"),
        "tool": ("[unused9]工具：", "[unused10]"),
        "function": ("[unused9]方法：", "[unused10]"),
    },
)
_GPT_OSS = (
    "{%- for message in messages -%}{{- '<|start|>' ~ message.role ~ '<|message|>' ~ message.content ~ "
    "('<|return|>' if message.role == 'assistant' else '<|end|>') -}}{%- endfor -%}" + _asking("<|start|>assistant")
)


def is_template(text: str) -> bool:
    """Whether it is a name or may print what a conversation says, and not the same for all."""
    return text in BUILTIN or "{{" in text or "{%" in text


BUILTIN: Mapping[str, str] = {
    "chatml": CHATML,
    "llama2": _llama2(("", "\n")),
    "llama2-sys": _llama2(("<<SYS>>\n", "\n<</SYS>>\n\n")),
    "llama2-sys-bos": _llama2(("<<SYS>>\n", "\n<</SYS>>\n\n"), bos=True),
    "llama2-sys-strip": _llama2(("<<SYS>>\n", "\n<</SYS>>\n\n"), strip=True),
    "mistral-v1": _mistral(" ", " "),
    "mistral-v3": _mistral("", " ", trim=True),
    "mistral-v3-tekken": _mistral("", ""),
    "mistral-v7": _mistral_7(" "),
    "mistral-v7-tekken": _mistral_7(""),
    "phi3": _every("<|", "|>\n", "<|end|>\n", "<|assistant|>\n"),
    "phi4": _every("<|im_start|>", "<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "falcon3": _every("<|", "|>\n", "\n", "<|assistant|>\n"),
    "zephyr": _every("<|", "|>\n", "<|endoftext|>\n", "<|assistant|>\n"),
    "monarch": _MONARCH,
    "gemma": _held_system(
        ("<start_of_turn>user\n", "<end_of_turn>\n"),
        ("<start_of_turn>model\n", "<end_of_turn>\n"),
        "<start_of_turn>model\n",
        trim=True,
    ),
    "orion": _held_system(("Human: ", "\n\nAssistant: </s>"), ("", "</s>"), ""),
    "openchat": _OPENCHAT,
    "vicuna": _turns(
        "ASSISTANT:", {"system": ("", "\n\n"), "user": ("USER: ", "\n"), "assistant": ("ASSISTANT: ", "</s>\n")}
    ),
    "vicuna-orca": _turns(
        "ASSISTANT:", {"system": ("SYSTEM: ", "\n"), "user": ("USER: ", "\n"), "assistant": ("ASSISTANT: ", "</s>\n")}
    ),
    "deepseek": _turns(
        "### Response:\n",
        {"system": ("", ""), "user": ("### Instruction:\n", "\n"), "assistant": ("### Response:\n", "\n<|EOT|>\n")},
    ),
    "deepseek2": _turns(
        "Assistant:",
        {"system": ("", "\n\n"), "user": ("User: ", "\n\n"), "assistant": ("Assistant: ", "<｜end▁of▁sentence｜>")},
    ),
    "deepseek3": _turns(
        "<｜Assistant｜>",
        {"system": ("", "\n\n"), "user": ("<｜User｜>", ""), "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>")},
    ),
    "deepseek-ocr": "{%- for message in messages -%}{{- message.content -}}{%- endfor -%}",
    "command-r": _turns(
        f"{_COHERE}<|CHATBOT_TOKEN|>",
        {
            "system": (f"{_COHERE}<|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            "user": (f"{_COHERE}<|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            "assistant": (f"{_COHERE}<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        },
        trim="all",
    ),
    "llama3": _trimmed(
        "<|start_header_id|>",
        "<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "chatglm3": _every("<|", "|>\n ", "", "<|assistant|>", head="[gMASK]sop"),
    "chatglm4": _every("<|", "|>\n", "", "<|assistant|>\n", head="[gMASK]<sop>"),
    "glmedge": _every("<|", "|>\n", "", "<|assistant|>"),
    "minicpm": _turns("", {"user": ("<用户>", "<AI>"), "system": ("", ""), "assistant": ("", "")}, trim="all"),
    "exaone3": _exaone("[|", "|]", "[|endofturn|]\n", "[|assistant|]", "\n", tool=False),
    "exaone4": _exaone("[|", "|]", "[|endofturn|]\n", "[|assistant|]", "\n"),
    "exaone-moe": _exaone("<|", "|>\n", "<|endofturn|>\n", "<|assistant|>\n", "<|endofturn|>\n"),
    "rwkv-world": _RWKV,
    "granite": _granite("<|start_of_role|>assistant_tool_call<|end_of_role|><|tool_call|>"),
    "granite-4.0": _granite("<|start_of_role|>assistant<|end_of_role|><|tool_call|>"),
    "granite-4.1": _granite("<|start_of_role|>assistant<|end_of_role|><|tool_call|>"),
    "gigachat": _GIGACHAT,
    "megrez": _every("<|role_start|>", "<|role_end|>", "<|turn_end|>", "<|role_start|>assistant<|role_end|>"),
    "yandex": _turns(" Ассистент:[SEP]", {"user": (" Пользователь: ", "\n\n"), "assistant": (" Ассистент: ", "\n\n")}),
    "bailing": _bailing("<role>ASSISTANT</role>"),
    "bailing-think": _bailing("<role>ASSISTANT</role><think>"),
    "bailing2": _bailing(
        "<role>ASSISTANT</role>", after="<|role_end|>", default="<role>SYSTEM</role>detailed thinking off<|role_end|>"
    ),
    "llama4": _trimmed(
        "<|header_start|>", "<|header_end|>\n\n", "<|eot|>", "<|header_start|>assistant<|header_end|>\n\n"
    ),
    "smolvlm": _turns(
        "Assistant:",
        {
            "system": ("", "\n\n"),
            "user": ("User: ", "<end_of_utterance>\n"),
            "assistant": ("Assistant: ", "<end_of_utterance>\n"),
        },
        head="<|im_start|>",
    ),
    "hunyuan-moe": _turns(
        "",
        {
            "system": ("<|startoftext|>", "<|extra_4|>"),
            "assistant": ("", "<|eos|>"),
            "user": ("<|startoftext|>", "<|extra_0|>"),
        },
    ),
    "hunyuan-dense": _HUNYUAN_DENSE,
    "hunyuan-vl": _HUNYUAN_VL,
    "gpt-oss": _GPT_OSS,
    "kimi-k2": _turns(
        "<|im_assistant|>assistant<|im_middle|>",
        {
            "system": ("<|im_system|>system<|im_middle|>", "<|im_end|>"),
            "user": ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
            "assistant": ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
            "tool": ("<|im_system|>tool<|im_middle|>", "<|im_end|>"),
        },
    ),
    "seed_oss": _turns(
        "<seed:bos>assistant\n",
        {
            "system": ("<seed:bos>system\n", "<seed:eos>"),
            "user": ("<seed:bos>user\n", "<seed:eos>"),
            "assistant": ("<seed:bos>assistant\n", "<seed:eos>"),
            "tool": ("<seed:bos>tool\n", "<seed:eos>"),
        },
        trim="assistant",
    ),
    "grok-2": _turns(
        "Assistant:",
        {
            "system": ("System: ", "<|separator|>\n\n"),
            "user": ("Human: ", "<|separator|>\n\n"),
            "assistant": ("Assistant: ", "<|separator|>\n\n"),
        },
        trim="system user",
    ),
    "pangu-embedded": _PANGU,
    "solar-open": _every("<|begin|>", "<|content|>", "<|end|>", "<|begin|>assistant"),
}

"""From requests to prompts: tools for templates without them, budgets, continued messages."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.canned import INFO, ByteTokenizer

from corral.chat.adapt import Message
from corral.chat.conversation import Conversation, read_conversation
from corral.chat.held import held
from corral.chat.jobs import ChatModel, ChatRequest
from corral.chat.template import ChatTemplate
from corral.chat.tools import ToolChoice, read_tools
from corral.errors import InvalidRequest
from corral.tasks import Constraint, ConstraintKind, Sampling, ThoughtBudget, Trigger

TOOLS = read_tools([{"type": "function", "function": {"name": "add", "description": "Adds"}}])
ASK: Message = {"role": "user", "content": "1 + 1?"}
OPENS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


def model(source: str = "chatml") -> ChatModel:
    return ChatModel(ChatTemplate(source, "", ""), INFO, ByteTokenizer())


def talk(*messages: Message, continued: Message | None = None, part: Any = "content") -> Conversation:
    return Conversation(messages, True, continued, part)


def test_templates_without_tools_get_a_description() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said: Message = {"role": "assistant", "content": "So:", "tool_calls": [call]}
    results: list[Message] = [{"role": "tool", "content": "2"}, {"role": "tool", "content": "3"}]
    conversation = talk({"role": "system", "content": "Be kind."}, ASK, said, *results)
    text = model().render(ChatRequest(conversation, TOOLS, ToolChoice("auto"))).text
    assert text.startswith("<|im_start|>system\nBe kind.\n\nYou may call functions.")
    assert '"name": "add", "description": "Adds"' in text
    assert 'assistant\nSo:\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>" in text


def test_a_plain_chat_needs_no_reader() -> None:
    assert model().render(ChatRequest(talk(ASK))).is_plain
    assert not model().render(ChatRequest(talk(ASK), TOOLS, ToolChoice("auto"))).is_plain
    assert not model(OPENS).render(ChatRequest(talk(ASK))).is_plain
    assert model(OPENS).render(ChatRequest(talk(ASK), reasoning="none")).is_plain


def test_a_prompt_that_opens_thoughts() -> None:
    rendered = model(OPENS).render(ChatRequest(talk(ASK)))
    assert rendered.expect.is_thinking and rendered.text.endswith("<think>\n")


def test_thoughts_that_the_template_opens_in_any_case_are_closed_where_there_must_be_none() -> None:
    rendered = model(OPENS).render(ChatRequest(talk(ASK), kwargs={"enable_thinking": False}))
    assert rendered.text.endswith("<think>\n\n</think>\n\n") and not rendered.expect.is_thinking


def budget(source: str, **fields: Any) -> ThoughtBudget | None:
    chat = model(source)
    request = ChatRequest(**{"conversation": talk(ASK), "budget": 7, **fields})
    return chat.thought_budget(chat.render(request), request)


def test_what_ends_thoughts() -> None:
    assert budget(OPENS, budget_message="Enough.") == ThoughtBudget(
        7, ("<think>",), ("</think>",), tuple(b"Enough.</think>"), n_open=0
    )
    said: Message = {"role": "assistant", "content": "", "reasoning_content": "Hm <|x|>"}
    begun = budget(OPENS, conversation=talk(ASK, continued=said, part="reasoning_content"))
    assert begun is not None and begun.n_open == len("Hm <|x|>")
    closed = budget(OPENS + "{% if add_generation_prompt %}</think>{% endif %}")
    assert closed is not None and closed.n_open == -1
    assert budget("chatml") is None
    assert budget(OPENS, budget=-1) is None
    armed = budget(OPENS, budget=-1, can_end=True)
    assert armed is not None and armed.can_end and armed.n_tokens == -1


def test_a_call_may_end_thoughts() -> None:
    glm = OPENS + "{# <role>ASSISTANT</role> <arg_key> #}"
    asks: dict[str, Any] = {"tools": TOOLS, "choice": ToolChoice("auto")}
    found = budget(glm, **asks)
    assert found is not None and found.ends == ("</think>", "<tool_call>") and found.forced == tuple(b"</think>")
    for fields in ({}, {**asks, "reads_calls": False}, {**asks, "parses": False}):
        found = budget(glm, **fields)
        assert found is not None and found.ends == ("</think>",)


def test_thoughts_of_channels_come_again() -> None:
    found = budget("{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant{# <|channel|> #}")
    assert found == ThoughtBudget(
        7, ("<|channel|>analysis<|message|>",), ("<|end|>",), tuple(b"<|end|>"), anywhere=True
    )


class Marked(ByteTokenizer):
    """The marks around thoughts are control tokens, as Mistral's are."""

    n_vocab = ByteTokenizer.n_vocab + 2

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        marks = {"[THINK]": 258, "[/THINK]": 259}
        if text in marks and parse_special:
            return [marks[text]]
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)

    def piece(self, token: int, *, special: bool) -> bytes:
        if token > 257:
            return (b"[THINK]" if token == 258 else b"[/THINK]") if special else b""
        return super().piece(token, special=special)


def test_marks_of_thoughts_that_stay_in_the_text_are_printed() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}{# [THINK] [/THINK] #}"
    chat = ChatModel(ChatTemplate(source, "", ""), INFO, Marked())
    for reasoning in ("none", "deepseek"):
        rendered = chat.render(ChatRequest(talk(ASK), reasoning=reasoning))  # type: ignore[arg-type]
        assert rendered.is_plain == (reasoning == "none")
        assert chat.preserved(rendered) >= {258, 259}


def test_text_is_continued_behind_the_thoughts() -> None:
    said: Message = {"role": "assistant", "content": "So"}
    rendered = model(OPENS).render(ChatRequest(talk(ASK, continued=said)))
    assert rendered.text.endswith("<think>\n\n</think>\n\nSo") and rendered.expect.is_text
    thought = {**said, "reasoning_content": "Hm"}
    rendered = model(OPENS).render(ChatRequest(talk(ASK, continued=thought)))
    assert rendered.text.endswith("<think>\nHm\n</think>\n\nSo")
    rendered = model(OPENS).render(ChatRequest(talk(ASK, continued=thought, part="reasoning_content")))
    assert rendered.text.endswith("<think>\nHm") and rendered.expect.is_thinking


HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{# <|channel|> #}{% endif %}"
)


@pytest.mark.parametrize("kind", ["", " json", " <|constrain|>json"])
def test_what_waits_for_a_trigger_does_so_behind_each_mark_that_harmony_writes(kind: str) -> None:
    request = ChatRequest(talk(ASK))
    chat = model(HARMONY)
    asked = Sampling(constraint=Constraint(ConstraintKind.REGEX, "ab", (Trigger("!"),)))
    constraint = held(asked, chat, request, chat.render(request)).constraint
    assert constraint is not None
    assert f"<|channel|>final{kind}<|message|>" in (constraint.after, *constraint.or_after)


def test_harmony_is_continued_in_its_channels() -> None:
    thought: Message = {"role": "assistant", "content": "So", "reasoning_content": "Hm"}
    text = model(HARMONY).render(ChatRequest(talk(ASK, continued=thought))).text
    assert text.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>So"
    )


def test_no_thoughts_can_be_continued_where_there_are_none() -> None:
    thought: Message = {"role": "assistant", "content": "", "reasoning_content": "Hm"}
    with pytest.raises(InvalidRequest, match="no reasoning_content"):
        model().render(ChatRequest(talk(ASK, continued=thought, part="reasoning_content")))


def test_thoughts_that_nobody_asked_to_continue_are_left_out_where_the_model_has_none() -> None:
    thought: Message = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    conversation = read_conversation((ASK, thought), prefill=True, continue_final=False, add_generation_prompt=True)
    assert model().render(ChatRequest(conversation)).text == model().render(ChatRequest(talk(ASK))).text


def test_a_second_template_for_tools() -> None:
    plain = ChatTemplate("plain:{{ messages[0].content }}", "", "")
    tooled = ChatTemplate(
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}:{{ messages[0].content }}", "", ""
    )
    chat = ChatModel(plain, INFO, ByteTokenizer(), tooled)
    assert chat.render(ChatRequest(talk(ASK))).text == "plain:1 + 1?"
    assert chat.render(ChatRequest(talk(ASK), TOOLS, ToolChoice("auto"))).text.startswith("add:")

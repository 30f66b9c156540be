"""Where the last question and the answer begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.chat.borders import text_borders, token_borders
from corral.chat.template import ChatTemplate, Message
from corral.sim.tokenizer import SimTokenizer

TEMPLATE = ChatTemplate("chatml", "", "")
SYSTEM: Message = {"role": "system", "content": "Be kind."}
ASK: Message = {"role": "user", "content": "Why?"}
ANSWER: Message = {"role": "assistant", "content": "So."}


def bare(template: ChatTemplate) -> Callable[[Sequence[Message]], str]:
    return lambda messages: template.render(messages, add_generation_prompt=False)


def _heads(messages: list[Message]) -> list[str]:
    text = TEMPLATE.render(messages)
    return [text[n:].split("\n")[0] for n in text_borders(text, messages, bare(TEMPLATE))]


def test_the_first_question_begins_behind_the_system_message() -> None:
    assert _heads([SYSTEM, ASK]) == ["<|im_start|>user", "<|im_start|>assistant"]


def test_later_the_last_question_counts() -> None:
    messages = [SYSTEM, ASK, ANSWER, ASK]
    text = TEMPLATE.render(messages)
    first, last = text_borders(text, messages, bare(TEMPLATE))
    assert text[first:].startswith("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant")
    assert text[last:] == "<|im_start|>assistant\n"


def test_a_template_that_refuses_to_render_less_gives_what_it_can() -> None:
    picky = ChatTemplate(
        "{% if messages | length < 2 %}{{ raise_exception('alone') }}{% endif %}{% for m in messages %}{{ m.content }};"
        "{% endfor %}{% if add_generation_prompt %}go{% endif %}",
        "",
        "",
    )
    text = picky.render([SYSTEM, ASK])
    assert text_borders(text, [SYSTEM, ASK], bare(picky)) == [len(text) - 2]


def test_tokens_before_a_border_are_counted() -> None:
    tokenizer = SimTokenizer()
    text = "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"
    prompt = tokenizer.tokenize(text, add_special=True, parse_special=True)
    (n,) = token_borders(prompt, text, [text.rindex("<|im_start|>")], tokenizer)
    assert tokenizer.detokenize(prompt[n:], special=True) == "<|im_start|>assistant\n"

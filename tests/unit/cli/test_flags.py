"""Each flag is llama-server's or our own, and the documentation names all of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corral.cli.absent import is_absent
from corral.cli.flags import FLAGS

ROOT = Path(__file__).parents[3]
DIFFERENCES = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

ALL = [flag for group in FLAGS.values() for flag in group]
SHARED = """
--model --ctx-size --parallel --kv-unified --batch-size --ubatch-size --threads --threads-batch --flash-attn
--cache-type-k --cache-type-v --lora --lora-scaled --lora-init-without-apply --kv-offload --gpu-layers --load-mode
--mmap --mlock --swa-full --rope-freq-base --rope-freq-scale --rope-scale --cont-batching --context-shift --cache-ram
--cache-prompt --cache-reuse --ctx-checkpoints --checkpoint-min-step --slot-prompt-similarity --host --port
--api-prefix --api-key --api-key-file --alias --tags --sse-ping-interval --metrics --slots --slot-save-path --props
--cors-origins
--cors-methods --cors-headers --cors-credentials --ssl-key-file --ssl-cert-file --chat-template --chat-template-file
--chat-template-kwargs --prefill-assistant --reasoning --reasoning-format --reasoning-effort --reasoning-budget
--reasoning-budget-message --reasoning-preserve --skip-chat-parsing --jinja --predict --keep --reverse-prompt --special
--temp --top-k --top-p --min-p --seed --samplers --sampler-seq --ignore-eos --top-nsigma --xtc-probability
--xtc-threshold --typical --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty --dry-multiplier
--dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay
--dynatemp-range --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent --logit-bias --grammar --grammar-file
--json-schema --json-schema-file --verbose --verbosity --log-file --log-prefix --log-timestamps --log-disable --warmup
--timeout --threads-http --ui --perf --offline --defrag-thold --log-colors --escape
"""
"""Those that llama-server has, too, and has in the same sense."""


def own() -> set[str]:
    return {flag.name for flag in ALL if flag.own}


def test_what_is_not_llama_servers_is_marked_as_our_own() -> None:
    assert {flag.name for flag in ALL} - set(SHARED.split()) == own()
    assert not [flag.name for flag in ALL if is_absent(flag.name)]


def test_the_differences_name_exactly_our_own_flags() -> None:
    section = DIFFERENCES.split("\n### Flags of our own\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(--[\w-]+)`", "".join(rows))) == own()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documentation_have_flags_that_exist(page: Path) -> None:
    names = {name for flag in ALL for name in (*flag.names, *flag.negatives)}
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("corral serve")]
    for command in commands:
        words = [word.partition("=")[0] for word in command.partition("#")[0].split() if word.startswith("-")]
        assert set(words) <= names, command

"""The flags of llama-server that corral does not have: known, so that they are refused by name."""

from __future__ import annotations

_NAMES = """
-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo -cl --cache-list
--completion-bash --list-devices -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb
--cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch --rope-scaling --yarn-orig-ctx --yarn-ext-factor
--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --repack -nr --no-repack --no-host --rpc -lzm --lazy-mode
--numa -dev --device -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -sm --split-mode
-ts --tensor-split -mg --main-gpu -fit --fit -fitt --fit-target -fitc --fit-ctx --check-tensors --override-kv
--op-offload --no-op-offload --control-vector --control-vector-scaled
--control-vector-layer-range --log-jsonl --log-prompts-dir
-bs --backend-sampling -hfd -hfrd --hf-repo-draft -td --threads-draft -tbd --threads-batch-draft -Cd
--cpu-mask-draft -Crd --cpu-range-draft --cpu-strict-draft --prio-draft --poll-draft -Cbd --cpu-mask-batch-draft
--cpu-strict-batch-draft --prio-batch-draft --poll-batch-draft -otd --override-tensor-draft -cmoed --cpu-moe-draft
-ncmoed --n-cpu-moe-draft -devd --device-draft -ngld --gpu-layers-draft --n-gpu-layers-draft -md --model-draft -ctkd
--cache-type-k-draft -ctvd --cache-type-v-draft --draft-p-split --draft-p-min --draft --draft-n --draft-max
--draft-min --draft-n-min -lcs --lookup-cache-static -lcd --lookup-cache-dynamic --kv-unified-per-slot
--cache-idle-slots --no-cache-idle-slots
--spm-infill --pooling --embedding --embeddings --embd-normalize --rerank --reranking -mm --mmproj
-mmu --mmproj-url --mmproj-auto --mmproj-offload -mmdev --mmproj-device --image-min-tokens
--image-max-tokens --mtmd-batch-max-tokens --media-path --reuse-port --path --ui-config --webui-config
--ui-config-file --webui-config-file --ui-mcp-proxy --webui-mcp-proxy --tools --tools-runtime --mcp-servers-config
--mcp-servers-json -ag --agent --models-dir --models-preset --models-max --models-autoload
--sleep-idle-seconds
"""
_PREFIXES = ("--spec-", "--video-", "--fim-", "--gpt-oss-", "--vision-", "--embd-gemma-")
_OFF_SWITCHES = """
--no-mmproj --no-mmproj-auto --no-ui-mcp-proxy --no-webui-mcp-proxy -no-ag --no-agent
--no-spec-draft-backend-sampling --no-mmproj-offload --no-log-jsonl --no-models-autoload
"""
_DOWNLOADS = "-hf -hfr --hf-repo -hff --hf-file -mu --model-url -dr --docker-repo"
_MODELS = "--models-dir --models-preset"

ABSENT = frozenset(_NAMES.split())
OFF_ALREADY = frozenset(_OFF_SWITCHES.split())
"""Switches that turn off what corral does not have: harmless."""

OFF_VALUES = {"-fit": "off", "--fit": "off", "--spec-type": "none", "--sleep-idle-seconds": "-1"}
"""Likewise, flags with a value that does."""

INSTEAD = dict.fromkeys(_DOWNLOADS.split(), "download the GGUF file, then name it with -m") | dict.fromkeys(
    _MODELS.split(), "there is one model, which -m names"
)
"""What to do without a flag."""


def is_absent(name: str) -> bool:
    """Whether llama-server has this flag and corral not."""
    return name in ABSENT or name.startswith(_PREFIXES)

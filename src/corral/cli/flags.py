"""The command line as one table: every flag of ``corral serve``, from which parsing, help and docs/cli.md come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corral.cli import kinds as k
from corral.tasks import DEFAULT_DRY_BREAKERS, DEFAULT_SAMPLERS, Sampling


@dataclass(frozen=True, slots=True)
class Flag:
    """One option. ``names`` are llama-server's; ``negatives`` switch it off (only where the kind is SWITCH).

    ``repeats``: each use adds a value to a tuple; else the last one wins. ``note``: why it is accepted and changes
    nothing. ``only``: the one value that is available so far. ``own``: llama-server has no such flag.
    """

    names: tuple[str, ...]
    kind: k.Kind
    default: Any
    help: str
    env: str = ""
    negatives: tuple[str, ...] = ()
    repeats: bool = False
    note: str = ""
    only: Any = None
    own: bool = False

    @property
    def name(self) -> str:
        """The name it goes by in messages: the first long one."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def key(self) -> str:
        """The name of its value."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def negative_env(self) -> str:
        """LLAMA_ARG_NO_X where there is a negative form."""
        return self.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1) if self.negatives else ""


def _own(names: str, kind: k.Kind, default: Any, text: str, env: str = "") -> Flag:
    """One that llama-server does not have."""
    return _flag(names, kind, default, text, env, own=True)


def _flag(names: str, kind: k.Kind, default: Any, text: str, env: str = "", **rest: Any) -> Flag:
    negatives = tuple(name[1:] for name in names.split() if name.startswith("!"))
    positives = tuple(name for name in names.split() if not name.startswith("!"))
    full_env = env if not env or env.startswith("LLAMA_") else f"LLAMA_ARG_{env}"
    return Flag(positives, kind, default, text, full_env, negatives, **rest)


_S = Sampling()
_HTTP = "HTTP runs on one event loop"

FLAGS: dict[str, tuple[Flag, ...]] = {
    "Model and context": (
        _flag("-m --model", k.PATH, None, "GGUF file; without it the bundled demo model", "MODEL"),
        _flag("-c --ctx-size", k.COUNT, 0, "KV cells for all slots together; 0: the training context", "CTX_SIZE"),
        _flag("-np --parallel", k.integer(-1), -1, "slots, KV split between them; -1: 4 that share it", "N_PARALLEL"),
        _flag(
            "-kvu --kv-unified !-no-kvu !--no-kv-unified",
            k.SWITCH,
            None,
            "one KV pool that all slots share; default: on without -np",
            "KV_UNIFIED",
        ),
        _flag("-b --batch-size", k.integer(1), 2048, "tokens in one step at most", "BATCH"),
        _flag("-ub --ubatch-size", k.integer(1), 512, "tokens in one forward pass at most", "UBATCH"),
        _flag(
            "-t --threads",
            k.INT,
            -1,
            "threads for generation; below 1: the cores. They spin: beside other busy processes fewer are faster",
            "THREADS",
        ),
        _flag("-tb --threads-batch", k.INT, -1, "threads for prompts; below 1: as -t"),
        _flag("-fa --flash-attn", k.ON_OFF_AUTO, "auto", "flash attention", "FLASH_ATTN"),
        _flag("-ctk --cache-type-k", k.CACHE_TYPE, "f16", "type of K (f32, f16, q8_0, q4_0, ...)", "CACHE_TYPE_K"),
        _flag("-ctv --cache-type-v", k.CACHE_TYPE, "f16", "type of V, as for K", "CACHE_TYPE_V"),
        _flag("--lora", k.ADAPTERS, (), "LoRA adapters to load; numbered from 0, in order", repeats=True),
        _flag(
            "--lora-scaled",
            k.SCALED_ADAPTERS,
            (),
            "LoRA adapters to load and their scales; numbered after those of --lora",
            repeats=True,
        ),
        _flag("--lora-init-without-apply", k.SWITCH, False, "adapters have scale 0 until POST /lora-adapters"),
        _flag("-kvo --kv-offload !-nkvo !--no-kv-offload", k.SWITCH, True, "KV cache on the GPU", "KV_OFFLOAD"),
        _flag("-ngl --gpu-layers --n-gpu-layers", k.LAYERS, -1, "layers on the GPU", "N_GPU_LAYERS"),
        _flag("-lm --load-mode", k.LOAD_MODE, "auto", "auto, none, mmap, mlock or mmap+mlock", "LOAD_MODE"),
        _flag("--mmap !--no-mmap", k.SWITCH, None, "map the file into memory (older form of -lm)", "MMAP"),
        _flag("--mlock", k.SWITCH, None, "keep the model in RAM (older form of -lm)", "MLOCK"),
        _flag("--swa-full", k.SWITCH, False, "whole-size cache for sliding windows", "SWA_FULL"),
        _flag("--rope-freq-base", k.number(0), 0.0, "RoPE base frequency; 0: the model's", "ROPE_FREQ_BASE"),
        _flag("--rope-freq-scale", k.number(0), 0.0, "RoPE frequency scale; 0: the model's", "ROPE_FREQ_SCALE"),
        _flag("--rope-scale", k.number(0), 0.0, "RoPE context factor: 1 / --rope-freq-scale", "ROPE_SCALE"),
    ),
    "Scheduling and prefix cache": (
        _flag("-cb --cont-batching !-nocb !--no-cont-batching", k.SWITCH, True, "continuous batching", "CONT_BATCHING"),
        _own("--itl-target-ms", k.number(0), 400.0, "gap between two tokens that prompts of others may cause, ms"),
        _own("--max-queue", k.COUNT, 1024, "requests that may wait for a slot; more get 503"),
        _own("--park-min-tokens", k.COUNT, 64, "tokens before parking for the fair share of another key; 0: never"),
        _own("--priority-age-s", k.number(0.1), 10.0, "seconds of waiting that count as one priority more"),
        _own("--shared-cache", k.SWITCH, False, "API keys reuse each other's prefixes, and can tell that they do"),
        _own("--drain-s", k.number(0), 30.0, "seconds that running requests get at shutdown"),
        _flag(
            "--context-shift !--no-context-shift",
            k.SWITCH,
            False,
            "generations that fill their context drop a part of it and go on",
            "CONTEXT_SHIFT",
        ),
        _flag("-cram --cache-ram", k.integer(-1), 8192, "MiB of RAM for idle prefixes; -1: no limit", "CACHE_RAM"),
        _own("--cache-disk", k.NEW_FOLDER, None, "folder for prefixes that leave RAM", "CACHE_DISK"),
        _own("--cache-disk-gib", k.number(0), 16.0, "GiB of all files in the folder at most", "CACHE_DISK_GIB"),
        _flag("--cache-prompt !--no-cache-prompt", k.SWITCH, True, "reuse prefixes by default", "CACHE_PROMPT"),
        _flag("--cache-reuse", k.COUNT, 0, "smallest chunk of a prompt reused by moving it; 0: off", "CACHE_REUSE"),
        _flag(
            "-ctxcp --ctx-checkpoints --swa-checkpoints",
            k.COUNT,
            32,
            "checkpoints of a conversation, where memory cannot be cut back (sliding window, recurrent)",
            "CTX_CHECKPOINTS",
        ),
        _flag(
            "-cms --checkpoint-min-step",
            k.COUNT,
            8192,
            "tokens between checkpoints other than those of the last messages; 0: at every message",
            "CHECKPOINT_MIN_SPACING_NT",
        ),
        _flag("-sps --slot-prompt-similarity", k.number(0, 1), 0.1, "share of a prompt that makes a slot preferred"),
        _own("--audit", k.SWITCH, False, "check all invariants after every step (slow)"),
    ),
    "Server": (
        _flag("--host", k.TEXT, "127.0.0.1", "address to listen on", "HOST"),
        _flag("--port", k.integer(0, 65535), 8080, "port to listen on; 0: any free one", "PORT"),
        _flag("--api-prefix", k.TEXT, "", "path before every route, without a trailing slash", "API_PREFIX"),
        _flag("--api-key", k.LIST, (), "keys, one of which a request must carry", "LLAMA_API_KEY"),
        _flag(
            "--api-key-file",
            k.KEY_FILE,
            (),
            "file of keys, one a line: KEY [weight=1] [priority=0], # begins a line of comment",
            "API_KEY_FILE",
        ),
        _own(
            "--max-body-mib",
            k.COUNT,
            0,
            "MiB of a request's body; 0: 8, or 16 bytes for each token of a slot's context if that is more",
        ),
        _flag("-a --alias", k.LIST, (), "names of the model in replies and /v1/models", "ALIAS"),
        _flag("--tags", k.LIST, (), "tags of the model, for information", "TAGS"),
        _flag("--sse-ping-interval", k.integer(-1), 30, "seconds before a ping; below 1: none", "SSE_PING_INTERVAL"),
        _own("--always-usage", k.SWITCH, False, "streams end with usage even if not asked for"),
        _flag("--metrics !--no-metrics", k.SWITCH, False, "GET /metrics", "ENDPOINT_METRICS"),
        _flag("--slots !--no-slots", k.SWITCH, True, "GET /slots", "ENDPOINT_SLOTS"),
        _own("--slots-debug", k.SWITCH, False, "GET /slots shows texts of users", "LLAMA_SERVER_SLOTS_DEBUG"),
        _flag("--slot-save-path", k.FOLDER, None, "folder of slot files: enables POST /slots/{id}"),
        _own("--cache-show-text", k.SWITCH, False, "GET /cache shows texts of users, of all keys"),
        _own("--pin-file", k.PINS, (), "prompts to keep from the start: bodies of POST /cache/pin, one a line"),
        _own("--responses-store", k.PATH, None, "SQLite file of responses: enables previous_response_id"),
        _own("--responses-store-max", k.integer(1), 1000, "responses of an API key that it keeps; the oldest go first"),
        _flag("--props", k.SWITCH, False, "POST /props", "ENDPOINT_PROPS"),
        _flag("--cors-origins", k.TEXT, "*", "allowed origins; localhost: any local one", "CORS_ORIGINS"),
        _flag("--cors-methods", k.TEXT, "GET, POST, DELETE, OPTIONS", "allowed methods", "CORS_METHODS"),
        _flag("--cors-headers", k.TEXT, "*", "allowed headers", "CORS_HEADERS"),
        _flag("--cors-credentials !--no-cors-credentials", k.SWITCH, True, "allow credentials", "CORS_CREDENTIALS"),
        _flag("--ssl-key-file", k.EXISTING, None, "PEM private key", "SSL_KEY_FILE"),
        _flag("--ssl-cert-file", k.EXISTING, None, "PEM certificate", "SSL_CERT_FILE"),
    ),
    "Chat": (
        _flag("--chat-template", k.TEXT, None, "Jinja text or a name such as llama3", "CHAT_TEMPLATE"),
        _flag("--chat-template-file", k.FILE_TEXT, None, "the same from a file", "CHAT_TEMPLATE_FILE"),
        _flag("--chat-template-kwargs", k.JSON_OBJECT, {}, "variables for the template", "CHAT_TEMPLATE_KWARGS"),
        _flag(
            "--prefill-assistant !--no-prefill-assistant",
            k.SWITCH,
            True,
            "continue a last message of the assistant instead of answering it",
            "PREFILL_ASSISTANT",
        ),
        _flag("-rea --reasoning", k.ON_OFF_AUTO, "auto", "whether models think by default", "REASONING"),
        _flag("--reasoning-format", k.REASONING_FORMAT, "auto", "none: thoughts stay in content", "THINK"),
        _flag("--reasoning-effort", k.TEXT, "default", "effort; none: no thoughts", "REASONING_EFFORT"),
        _flag(
            "--reasoning-budget",
            k.integer(-1),
            -1,
            "thoughts are ended after N tokens; 0: at once; -1: never",
            "THINK_BUDGET",
        ),
        _flag("--reasoning-budget-message", k.TEXT, "", "text before the mark that ends them", "THINK_BUDGET_MESSAGE"),
        _flag(
            "--reasoning-preserve !--no-reasoning-preserve",
            k.SWITCH,
            True,
            "templates print the thoughts of earlier turns, if they can",
            "REASONING_PRESERVE",
        ),
        _flag(
            "--skip-chat-parsing !--no-skip-chat-parsing",
            k.SWITCH,
            False,
            "replies are text: no thoughts, no tool calls",
            "SKIP_CHAT_PARSING",
        ),
        _own("--parse-special-user-text", k.SWITCH, False, "control tokens in texts of users are control tokens"),
        _flag("--jinja !--no-jinja", k.SWITCH, True, "templates are Jinja", "JINJA", only=True),
    ),
    "Defaults of requests": (
        _flag("-n --predict --n-predict", k.integer(-1), -1, "tokens to generate; -1: up to the context", "N_PREDICT"),
        _flag("--keep", k.integer(-1), 0, "first tokens that a context shift keeps; -1: the prompt"),
        _flag("-r --reverse-prompt", k.ESCAPED, (), "stop string; repeatable", repeats=True),
        _flag("-sp --special", k.SWITCH, False, "print control tokens"),
        _flag("--temp --temperature", k.number(), _S.temperature, "temperature; 0: greedy", "TEMPERATURE"),
        _flag("--top-k", k.INT, _S.top_k, "keep the k likeliest; 0: off", "TOP_K"),
        _flag("--top-p", k.number(), _S.top_p, "keep the likeliest with this sum; 1: off", "TOP_P"),
        _flag("--min-p", k.number(), _S.min_p, "keep those with this share of the likeliest; 0: off", "MIN_P"),
        _flag("-s --seed", k.SEED, -1, "seed; -1: random"),
        _flag("--samplers", k.SAMPLER_NAMES, DEFAULT_SAMPLERS, "samplers in order"),
        _flag("--sampler-seq --sampling-seq", k.SAMPLER_LETTERS, None, "the same by letters, as edskypmxt"),
        _flag("--ignore-eos", k.SWITCH, False, "ban end-of-generation tokens"),
        _flag("--top-nsigma --top-n-sigma", k.number(), _S.top_n_sigma, "top-n-sigma; -1: off"),
        _flag("--xtc-probability", k.number(), _S.xtc_probability, "XTC probability; 0: off"),
        _flag("--xtc-threshold", k.number(), _S.xtc_threshold, "XTC threshold"),
        _flag("--typical --typical-p", k.number(), _S.typical_p, "locally typical sampling; 1: off"),
        _flag("--repeat-last-n", k.COUNT, _S.repeat_last_n, "tokens that penalties look back on; 0: off"),
        _flag("--repeat-penalty", k.number(), _S.repeat_penalty, "repetition; 1: off", "REPEAT_PENALTY"),
        _flag("--presence-penalty", k.number(), _S.presence_penalty, "presence; 0: off", "PRESENCE_PENALTY"),
        _flag("--frequency-penalty", k.number(), _S.frequency_penalty, "frequency; 0: off", "FREQUENCY_PENALTY"),
        _flag("--dry-multiplier", k.number(), _S.dry_multiplier, "DRY strength; 0: off"),
        _flag("--dry-base", k.number(), _S.dry_base, "DRY base"),
        _flag("--dry-allowed-length", k.COUNT, _S.dry_allowed_length, "DRY: repetition without penalty"),
        _flag("--dry-penalty-last-n", k.COUNT, _S.dry_penalty_last_n, "DRY: tokens looked back on; 0: off"),
        _flag(
            "--dry-sequence-breaker",
            k.ESCAPED,
            DEFAULT_DRY_BREAKERS,
            "DRY: a text that ends repetition, instead of the default ones; none: no such text; repeatable",
            repeats=True,
        ),
        _flag("--adaptive-target", k.number(), _S.adaptive_target, "adaptive-p: aim at this probability; below 0: off"),
        _flag("--adaptive-decay", k.number(0, 0.99), _S.adaptive_decay, "adaptive-p: decay"),
        _flag("--dynatemp-range", k.number(), _S.dynatemp_range, "dynamic temperature range; 0: off"),
        _flag("--dynatemp-exp", k.number(), _S.dynatemp_exponent, "dynamic temperature exponent"),
        _flag("--mirostat", k.integer(0, 2), _S.mirostat, "Mirostat 1 or 2; 0: off"),
        _flag("--mirostat-lr", k.number(), _S.mirostat_eta, "Mirostat eta"),
        _flag("--mirostat-ent", k.number(), _S.mirostat_tau, "Mirostat tau"),
        _flag("-l --logit-bias", k.BIAS, (), "add to a token's logit; repeatable", repeats=True),
        _flag("--grammar", k.TEXT, "", "GBNF grammar"),
        _flag("--grammar-file", k.FILE_TEXT, None, "the same from a file"),
        _flag("-j --json-schema", k.JSON_TEXT, None, "JSON schema that replies obey; {}: any object"),
        _flag("-jf --json-schema-file", k.JSON_FILE, None, "the same from a file"),
    ),
    "Log": (
        _flag("-v --verbose --log-verbose", k.SWITCH, False, "log everything"),
        _flag(
            "-lv --verbosity --log-verbosity",
            k.integer(0),
            3,
            "1: errors, 2: warnings, 3: information, 4 and more: everything",
            "LOG_VERBOSITY",
        ),
        _flag("--log-file", k.PATH, None, "write the log to a file, too", "LOG_FILE"),
        _flag("--log-prefix !--no-log-prefix", k.SWITCH, True, "the level's letter", "LOG_PREFIX"),
        _flag("--log-timestamps !--no-log-timestamps", k.SWITCH, True, "the time", "LOG_TIMESTAMPS"),
        _flag("--log-disable", k.SWITCH, False, "log nothing"),
    ),
    "Accepted, without effect": (
        _flag("--warmup !--no-warmup", k.SWITCH, True, "one run before serving", note="it is always done"),
        _flag("-to --timeout", k.INT, 3600, "read and write timeout", "TIMEOUT", note="there is no such limit"),
        _flag("--threads-http", k.INT, -1, "HTTP threads", "THREADS_HTTP", note=_HTTP),
        _flag("--ui --webui !--no-ui !--no-webui", k.SWITCH, True, "web page", "UI", note="there is no chat page"),
        _flag("--perf !--no-perf", k.SWITCH, False, "timings of libllama", "PERF", note="/metrics has timings"),
        _flag("--offline", k.SWITCH, False, "no downloads", "OFFLINE", note="nothing is ever downloaded"),
        _flag("-dt --defrag-thold", k.number(), -1.0, "defragmentation", "DEFRAG_THOLD", note="libllama dropped it"),
        _flag("--log-colors", k.ON_OFF_AUTO, "auto", "colours in the log", "LOG_COLORS", note="the log has no colours"),
        _flag("-e --escape !--no-escape", k.SWITCH, True, "escapes in prompts", note="no prompt is given here"),
    ),
}  # fmt: skip
"""Flags by the heading they have in the help."""

"""From the values of flags to the frozen settings of each room. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from corral.api.schemas.constraint import ANY_OBJECT
from corral.api.schemas.defaults import Defaults
from corral.cli.parse import Parsed, UsageError
from corral.config import (
    GIB,
    MAX_ROWS,
    MAX_SLOTS_UNIFIED,
    MIB,
    AdapterConfig,
    ApiKey,
    ContextConfig,
    EngineConfig,
    ModelConfig,
    ServerConfig,
    n_rows_for,
)
from corral.errors import InvalidRequest
from corral.guidance.guide import check_schema_text
from corral.llama.grammar import check_grammar
from corral.tasks import DEFAULT_DRY_BREAKERS, Constraint, ConstraintKind, Limits, Sampling

AUTO_SLOTS = 4
DEMO = Path("demo")
"""The path of a model that was not named: the bundled demo, which has to be made first."""
_FLASH = {"on": True, "off": False, "auto": None}


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``corral serve`` was asked to be."""

    model: ModelConfig
    context: ContextConfig
    engine: EngineConfig
    server: ServerConfig
    defaults: Defaults


def resolve(args: Parsed) -> Settings:
    """Raises UsageError where flags contradict each other."""
    n_slots = n_slots_of(args)
    return Settings(
        model=_model(args, args["model"] or DEMO),
        context=_context(args, n_slots),
        engine=_engine(args, n_slots),
        server=_server(args),
        defaults=_defaults(args),
    )


def n_slots_of(args: Parsed) -> int:
    """Slots that were asked for, or 4. Raises UsageError if a context cannot hold so many."""
    asked = args["parallel"]
    if asked == 0 or asked > MAX_ROWS:
        raise UsageError(f"--parallel: {asked} is not between 1 and {MAX_ROWS}")
    return AUTO_SLOTS if asked < 0 else int(asked)


def _model(args: Parsed, path: Path) -> ModelConfig:
    mode = args["load_mode"]
    use_mmap = mode in ("auto", "mmap", "mmap+mlock") if args["mmap"] is None else args["mmap"]
    use_mlock = mode in ("mlock", "mmap+mlock") if args["mlock"] is None else args["mlock"]
    return ModelConfig(path, args["gpu_layers"], use_mmap, use_mlock, _adapters(args))


def _adapters(args: Parsed) -> tuple[AdapterConfig, ...]:
    """Those of all uses of the two flags, in the order of their ids."""
    adapters = [adapter for use in (*args["lora"], *args["lora_scaled"]) for adapter in use]
    is_unapplied = args["lora_init_without_apply"]
    return tuple(replace(a, scale=0.0) if is_unapplied else a for a in adapters)


def _context(args: Parsed, n_slots: int) -> ContextConfig:
    unified = n_slots <= MAX_SLOTS_UNIFIED if args["kv_unified"] is None else args["kv_unified"]
    return ContextConfig(
        n_ctx=args["ctx_size"],
        n_slots=n_slots,
        n_rows=n_rows_for(n_slots, unified),
        n_batch=args["batch_size"],
        n_ubatch=min(args["ubatch_size"], args["batch_size"]),
        n_threads=max(args["threads"], 0),
        n_threads_batch=max(args["threads"] if args["threads_batch"] < 1 else args["threads_batch"], 0),
        kv_unified=unified,
        split_if_plain=args["kv_unified"] is None and args["parallel"] > 0,
        flash_attn=_FLASH[args["flash_attn"]],
        type_k=args["cache_type_k"],
        type_v=args["cache_type_v"],
        offload_kqv=args["kv_offload"],
        swa_full=args["swa_full"],
        rope_freq_base=args["rope_freq_base"],
        rope_freq_scale=_rope_freq_scale(args),
    )


def _rope_freq_scale(args: Parsed) -> float:
    factor = args["rope_scale"]
    return 1.0 / factor if factor and "rope_freq_scale" not in args.given else float(args["rope_freq_scale"])


def _engine(args: Parsed, n_slots: int) -> EngineConfig:
    ram = args["cache_ram"]
    return EngineConfig(
        n_slots=n_slots,
        itl_target_ms=args["itl_target_ms"],
        max_queue=args["max_queue"],
        cache_ram_bytes=-1 if ram < 0 else ram * MIB,
        cache_disk=args["cache_disk"],
        cache_disk_bytes=int(args["cache_disk_gib"] * GIB),
        cont_batching=args["cont_batching"],
        context_shift=args["context_shift"],
        slot_prompt_similarity=args["slot_prompt_similarity"],
        n_ctx_checkpoints=args["ctx_checkpoints"],
        checkpoint_min_step=args["checkpoint_min_step"],
        park_min_tokens=args["park_min_tokens"],
        priority_age_ms=1000 * args["priority_age_s"],
        show_text=args["slots_debug"],
        audit=args["audit"],
    )


def _api_prefix(text: str) -> str:
    """With a slash in front and none behind; empty for none."""
    text = text.strip("/")
    return f"/{text}" if text else ""


def _api_keys(args: Parsed) -> tuple[ApiKey, ...]:
    """Raises UsageError for an empty list: a variable that is not set must not open the server to all.

    Also for a key that is there twice and differs.
    """
    if "api_key" in args.given and not args["api_key"]:
        raise UsageError("--api-key is empty: give a key, or leave the flag out for a server without keys")
    keys: dict[str, ApiKey] = {}
    for key in (*map(ApiKey, args["api_key"]), *args["api_key_file"]):
        if keys.setdefault(key.key, key) != key:
            raise UsageError("an API key is given twice, with different weights or priorities")
    return tuple(keys.values())


def _server(args: Parsed) -> ServerConfig:
    if (args["ssl_key_file"] is None) != (args["ssl_cert_file"] is None):
        raise UsageError("--ssl-key-file and --ssl-cert-file need each other")
    file_template = args["chat_template_file"]
    return ServerConfig(
        host=args["host"],
        port=args["port"],
        api_prefix=_api_prefix(args["api_prefix"]),
        api_keys=_api_keys(args),
        max_body_bytes=args["max_body_mib"] * MIB,
        shared_cache=args["shared_cache"],
        alias=args["alias"],
        tags=args["tags"],
        endpoint_metrics=args["metrics"],
        endpoint_slots=args["slots"],
        endpoint_props=args["props"],
        slots_debug=args["slots_debug"],
        slot_save_path=args["slot_save_path"],
        cache_show_text=args["cache_show_text"],
        pins=args["pin_file"],
        responses_store=args["responses_store"],
        responses_store_max=args["responses_store_max"],
        cors_origins=args["cors_origins"],
        cors_methods=args["cors_methods"],
        cors_headers=args["cors_headers"],
        cors_credentials=args["cors_credentials"],
        sse_ping_interval_s=args["sse_ping_interval"],
        always_usage=args["always_usage"],
        chat_template=args["chat_template"] if file_template is None else file_template,
        chat_template_kwargs=args["chat_template_kwargs"],
        parse_special_user_text=args["parse_special_user_text"],
        reasoning=args["reasoning"],
        reasoning_format=args["reasoning_format"],
        reasoning_effort="" if args["reasoning_effort"] == "default" else args["reasoning_effort"],
        reasoning_budget=args["reasoning_budget"],
        reasoning_budget_message=args["reasoning_budget_message"],
        reasoning_preserve=args["reasoning_preserve"],
        skip_chat_parsing=args["skip_chat_parsing"],
        ssl_key_file=args["ssl_key_file"],
        ssl_cert_file=args["ssl_cert_file"],
    )


def _defaults(args: Parsed) -> Defaults:
    return Defaults(
        sampling=_sampling(args),
        limits=Limits(n_predict=args["predict"], stop=args["reverse_prompt"]),
        cache_prompt=args["cache_prompt"],
        n_keep=args["keep"],
        n_cache_reuse=args["cache_reuse"],
        special=args["special"],
        prefill_assistant=args["prefill_assistant"],
    )


def _sampling(args: Parsed) -> Sampling:
    return Sampling(
        temperature=max(args["temp"], 0.0),
        dynatemp_range=args["dynatemp_range"],
        dynatemp_exponent=args["dynatemp_exp"],
        top_k=args["top_k"],
        top_p=args["top_p"],
        min_p=args["min_p"],
        top_n_sigma=args["top_nsigma"],
        typical_p=args["typical"],
        xtc_probability=args["xtc_probability"],
        xtc_threshold=args["xtc_threshold"],
        repeat_last_n=args["repeat_last_n"],
        repeat_penalty=args["repeat_penalty"],
        presence_penalty=args["presence_penalty"],
        frequency_penalty=args["frequency_penalty"],
        dry_multiplier=args["dry_multiplier"],
        dry_base=args["dry_base"],
        dry_allowed_length=args["dry_allowed_length"],
        dry_penalty_last_n=args["dry_penalty_last_n"],
        dry_sequence_breakers=_breakers(args),
        mirostat=args["mirostat"],
        mirostat_tau=args["mirostat_ent"],
        mirostat_eta=args["mirostat_lr"],
        adaptive_target=args["adaptive_target"],
        adaptive_decay=args["adaptive_decay"],
        seed=None if args["seed"] < 0 else args["seed"],
        logit_bias=args["logit_bias"],
        ignore_eos=args["ignore_eos"],
        grammar=_grammar(args),
        constraint=_constraint(args),
        samplers=args["samplers"] if args["sampler_seq"] is None else args["sampler_seq"],
    )


def _grammar(args: Parsed) -> str:
    """Raises UsageError for what is not GBNF."""
    name = "grammar" if args["grammar_file"] is None else "grammar_file"
    text = str(args[name])
    try:
        if text:
            check_grammar(text)
    except InvalidRequest as error:
        reason = str(error).removeprefix("Failed to initialize samplers: ")
        raise UsageError(f"--{name.replace('_', '-')}: {reason}") from None
    return text


def _constraint(args: Parsed) -> Constraint | None:
    """Raises UsageError where several flags say what replies obey."""
    given = [name for name in ("grammar", "grammar_file", "json_schema", "json_schema_file") if args[name]]
    schema = args["json_schema"] if args["json_schema_file"] is None else args["json_schema_file"]
    if schema is None:
        return None
    if len(given) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names}: use one of them")
    try:
        check_schema_text(schema)
    except InvalidRequest as error:
        flag = "--json-schema" if args["json_schema_file"] is None else "--json-schema-file"
        raise UsageError(f"{flag}: {str(error).removeprefix('json_schema: ')}") from None
    return Constraint(ConstraintKind.JSON_SCHEMA, ANY_OBJECT if schema.strip() == "{}" else schema)


def _breakers(args: Parsed) -> tuple[str, ...]:
    if "dry_sequence_breaker" not in args.given:
        return DEFAULT_DRY_BREAKERS
    return tuple(text for text in args["dry_sequence_breaker"] if text != "none")

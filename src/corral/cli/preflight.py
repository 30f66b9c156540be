"""What can be known without the model is checked before it is loaded: one line with flag, value, reason and remedy."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corral.api.pins import check_pins
from corral.api.response_store import ResponseStore
from corral.chat.builtin import is_template
from corral.chat.template import ChatTemplate
from corral.cli.parse import Parsed, UsageError
from corral.cli.resolve import DEMO, Settings
from corral.config import ServerConfig
from corral.engine.disk_tier import prepare_folder
from corral.errors import CorralError, LoadError
from corral.llama.demo import bundled_demo
from corral.llama.file import check_file
from corral.llama.shape import check_shape

log = logging.getLogger("corral.cli")


def check(args: Parsed, settings: Settings) -> None:
    """Raises LoadError or UsageError for the first fault. The folder of --cache-disk and the store are made."""
    _check_weights(args, settings.model.path)
    with _named("--ctx-size", UsageError):
        check_shape(settings.context, n_ctx_train=0)
    _check_template(args)
    with _named("--pin-file"):
        check_pins(settings.server, settings.defaults)
    _check_certificate(settings.server)
    _check_slot_folder(settings.server.slot_save_path)
    with _named("--cache-disk"):
        if settings.engine.cache_disk is not None:
            prepare_folder(settings.engine.cache_disk)
    _check_store(settings.server)


@contextmanager
def _named(flag: str, kind: type[CorralError] = LoadError) -> Iterator[None]:
    """What is raised within it is about this flag."""
    try:
        yield
    except CorralError as error:
        raise kind(f"{flag}: {error}") from error


def _check_weights(args: Parsed, model: Path) -> None:
    with _named("--model"):
        if model == DEMO:
            bundled_demo()
        else:
            check_file(model)
    for flag, uses in (("--lora", args["lora"]), ("--lora-scaled", args["lora_scaled"])):
        with _named(flag):
            for adapter in (adapter for use in uses for adapter in use):
                check_file(adapter.path)


def _check_template(args: Parsed) -> None:
    """The file's text counts, as in ``resolve``. An empty text of the flag is the model's own template."""
    text = args["chat_template_file"]
    flag = "--chat-template" if text is None else "--chat-template-file"
    text = args["chat_template"] if text is None else text
    if text is None or (flag == "--chat-template" and not text):
        return
    if not is_template(text):
        shown = f"{text[:80]!r} is not the name of a template, and" if flag == "--chat-template" else "it"
        raise UsageError(
            f"{flag}: {shown} has no Jinja in it ('{{{{' or '{{%'): it would print the same for every conversation. "
            "--chat-template-file takes a file, --chat-template its text or a name such as llama3"
        )
    with _named(flag):
        ChatTemplate(text, "", "")


def _check_certificate(server: ServerConfig) -> None:
    cert, key = server.ssl_cert_file, server.ssl_key_file
    if cert is None or key is None:
        return
    try:
        # An empty password: a server must not stop to ask for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, OSError) as error:
        raise LoadError(
            f"--ssl-cert-file, --ssl-key-file: cannot use {cert} with {key}: {error.strerror or error}; give a "
            "certificate and its key, both in PEM, the key without a password"
        ) from None


def _check_slot_folder(folder: Path | None) -> None:
    if folder is not None and not os.access(
        folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        log.warning("--slot-save-path: %s cannot be written: slots can be restored, not saved", folder)


def _check_store(server: ServerConfig) -> None:
    if server.responses_store is None:
        return
    try:
        ResponseStore(server.responses_store, server.responses_store_max).open()
    except LoadError as error:
        raise LoadError(
            f"--responses-store: {error}; name an SQLite file, or a new one, in a folder that this user can write"
        ) from None

"""Prints the table of settings, as docs/configuration.md too."""

from __future__ import annotations

import json

from kcoord.server.failures import EXIT_CODES
from kcoord.server.settings.load import variable_of
from kcoord.server.settings.table import PROFILES, SECTIONS, SETTINGS, Setting

HEAD = """# Configuration

Printed by `kcoord config --output markdown` from the table in `kcoord/server/settings/table.py`; a test keeps it true.

Every setting has one name: Kafka's property where one covers it. Later sources win:

1. the defaults below
2. a profile: `--profile NAME`
3. a file: `--config FILE`, in TOML with nested tables or quoted dotted names (`[log]` and `sync = "os"`, or
   `"log.sync" = "os"`), or a broker's `.properties` file
4. the environment: `KCOORD_` and the name in capitals with `_` for `.`, such as `KCOORD_LOG_SYNC=os`; also
   `KCOORD_LISTEN`, `KCOORD_ADVERTISE`, `KCOORD_DATA`, `KCOORD_CONFIG` and `KCOORD_PROFILE` for the flags of these names
5. `--set NAME=VALUE`, repeatable
6. `--listen`, `--advertise` and `--data`, which are `listeners`, `advertised.listeners` and `log.dirs`

An unknown name is an error that says which known one is nearest. Properties of Kafka that mean nothing here are
accepted with a warning each, except those that protect a broker (TLS, SASL, ACLs): ignoring them would leave the server
open, so they are refused.

Which address clients are told: what the listener advertises, else the local address of the client's own connection.
That is right wherever the client reaches the server without address translation; behind a port mapping or a proxy use
`--advertise`.
"""


def _default(setting: Setting) -> str:
    value = setting.default
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(setting: Setting) -> str:
    if setting.choices:
        return " \\| ".join(setting.choices)
    return setting.unit or setting.kind


def as_table() -> str:
    width = max(len(setting.name) for setting in SETTINGS)
    lines = []
    for title, section in SECTIONS:
        lines += [f"{title}", ""]
        for setting in section:
            unit = f" {setting.unit}" if setting.unit else ""
            lines.append(f"  {setting.name:{width}}  {_default(setting)}{unit}")
            text = setting.doc
            if setting.choices:
                text = f"[{' | '.join(setting.choices)}] {text}"
            lines.append(f"      {text}")
        lines.append("")
    return "\n".join(lines).rstrip()


def as_json() -> str:
    rows = [
        {
            "name": setting.name,
            "type": setting.kind,
            "default": setting.default,
            "unit": setting.unit,
            "choices": list(setting.choices),
            "aliases": [alias for alias, _ in setting.aliases],
            "environment": variable_of(setting.name),
            "doc": setting.doc,
        }
        for setting in SETTINGS
    ]
    return json.dumps(rows, indent=2)


def as_markdown() -> str:
    lines = [HEAD]
    for title, section in SECTIONS:
        lines += [f"## {title}", "", "| name | default | unit or values | what it does |", "|---|---|---|---|"]
        for setting in section:
            text = setting.doc
            if setting.aliases:
                text += " Also " + ", ".join(f"`{alias}`" for alias, _ in setting.aliases) + "."
            default = f"`{_default(setting)}`" if _default(setting) else ""
            lines.append(f"| `{setting.name}` | {default} | {_kind(setting)} | {text} |")
        lines.append("")
    lines += ["## Profiles", ""]
    for name, values in PROFILES.items():
        pairs = ", ".join(f"`{key} = {value}`" for key, value in values.items())
        lines.append(f"`{name}`: {pairs}")
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(lines) + "\n"

"""The Lua files as scripts: a script is its own file behind the files it builds on."""

from __future__ import annotations

from importlib.resources import files

from headgate.stores.redis.client.commands__port_calls import Script


def load_script(name: str, *parts: str) -> Script:
    folder = files("headgate.stores.redis") / "lua"
    source = "\n".join((folder / f"{part}.lua").read_text() for part in (*parts, name))
    return Script(name, source)


def load_loop(name: str, inner: Script) -> Script:
    """A script that runs another as its function `decide(KEYS, ARGV)`."""
    own = load_script(name).source
    return Script(name, f"local function decide(KEYS, ARGV)\n{inner.source}\nend\n{own}")

"""tenants.d: what a tenant's file may say, what it inherits, and the words and places of what is refused."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.config import Config, ConfigErrors, Tenant, load, load_document, read, schema
from gateway.config.show import show
from policies import types

ENVIRON = {"SALT": "0123456789abcdef0123456789abcdef"}
FLEET = """\
version: 1
isolation: {salt_secret: "${SALT}"}
models: {m: {context_tokens: 4096}, n: {context_tokens: 4096}}
pools: {p: {model: m}, q: {model: n}}
endpoints: [{name: e0, url: "http://10.0.0.1:8000", pools: [p, q]}]
"""
KEY = f"{{id: k3m9x2p7q1wz, sha256: {'ab' * 32}}}"
OTHER = f"{{id: a3m9x2p7q1wz, sha256: {'cd' * 32}}}"
ACME = f"version: 1\nid: acme\nmodels: [{{name: m}}]\nkeys: [{KEY}]\n"
BETA = f"version: 1\nid: beta\nmodels: [{{name: n, aliases: [m]}}]\nkeys: [{OTHER}]\n"


def files(**texts: str) -> dict[str, str]:
    return {f"tenants.d/{name}.yaml": text for name, text in texts.items()}


def config(fleet: str = FLEET, **texts: str) -> Config:
    return read(fleet, "f.yaml", ENVIRON, files(**texts)).config


def tenant(text: str, fleet: str = FLEET) -> Tenant:
    tenants = config(fleet, acme=text).tenants
    assert tenants is not None
    return tenants["acme"]


def errors_of(fleet: str, tenants: Mapping[str, str] | None) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        read(fleet, "f.yaml", ENVIRON, tenants)
    return [str(error) for error in caught.value.errors]


def warnings_of(fleet: str = FLEET, **texts: str) -> list[str]:
    return [str(warning) for warning in read(fleet, "f.yaml", ENVIRON, files(**texts)).warnings]


def test_a_tenant_has_what_its_file_says() -> None:
    text = f"""\
version: 1
id: acme
name: Acme Trading
class: interactive
class_ceiling: critical
weight: 4
models: [{{name: m, aliases: [gpt-4o, default]}}, {{name: n}}]
allow: {{routes: [tokenize], parameters: [echo], media_hosts: [IMG.example]}}
cache: {{isolation: key}}
keys: [{KEY[:-1]}, name: ci, created: 2026-11-02, expires: 2027-02-01T00:00:00+01:00, class_ceiling: standard}}]
"""
    acme = tenant(text)
    assert (acme.name, acme.state, acme.class_, acme.class_ceiling, acme.weight) == (
        "Acme Trading", "active", "interactive", "critical", 4,
    )  # fmt: skip
    assert [(grant.name, grant.aliases) for grant in acme.models] == [("m", ("gpt-4o", "default")), ("n", ())]
    assert (acme.allow.routes, acme.allow.parameters, acme.allow.media_hosts) == (
        ("tokenize",), ("echo",), ("img.example",),
    )  # fmt: skip
    (key,) = acme.keys
    assert (key.name, key.state, key.created, key.class_ceiling) == ("ci", "active", "2026-11-02", "standard")
    assert key.expires is not None and key.expires.isoformat() == "2027-02-01T00:00:00+01:00"
    bounds = types.Limits(max_concurrency=64)
    assert config(acme=text).settings().tenants == {
        "acme": types.Tenant(id="acme", weight=4.0, limits=bounds, max_queued=256, max_queued_bytes=64 << 20)
    }


def test_what_it_leaves_out_is_a_default() -> None:
    acme = tenant(ACME)
    assert (acme.name, acme.class_, acme.class_ceiling, acme.weight, acme.cache.isolation) == (
        "acme", "standard", "standard", 1, "tenant",
    )  # fmt: skip
    assert acme.allow.parameters == ("chat_template_kwargs",)
    (key,) = acme.keys
    assert (key.name, key.state, key.expires, key.class_ceiling) == ("k3m9x2p7q1wz", "active", None, None)
    assert tenant(ACME.replace("standard", "batch") + "class: interactive\n").class_ceiling == "interactive"


def test_what_it_leaves_out_is_inherited_field_by_field_and_lists_whole() -> None:
    fleet = FLEET + (
        "tenant_defaults: {class: batch, weight: 3, models: [{name: m}, {name: n}],"
        " allow: {routes: [tokenize, detokenize], media_hosts: [a.example]}}\n"
    )
    acme = tenant(ACME + "allow: {routes: [count_tokens]}\nclass_ceiling: standard\n", fleet)
    assert (acme.class_, acme.class_ceiling, acme.weight) == ("batch", "standard", 3)
    assert [grant.name for grant in acme.models] == ["m"]
    assert (acme.allow.routes, acme.allow.media_hosts) == (("count_tokens",), ("a.example",))
    assert [grant.name for grant in tenant(ACME.replace("models: [{name: m}]\n", ""), fleet).models] == ["m", "n"]
    assert tenant(ACME.replace("[{name: m}]", "[]"), fleet).models == ()


def test_without_the_folder_there_are_no_tenants_and_with_an_empty_one_nobody_is_let_in(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(FLEET + "listen: {host: 127.0.0.1}\n")
    assert load(path, ENVIRON).tenants is None
    assert load(path, ENVIRON).settings().tenants == {}
    (tmp_path / "tenants.d").mkdir()
    loaded = load_document(path, ENVIRON)
    assert loaded.config.tenants == {}
    assert [str(warning) for warning in loaded.warnings] == [
        f"{path}:1:1: tenants.d holds no file: nobody has a key, every request gets 401"
    ]


def test_the_folder_beside_the_file_is_read_and_only_what_is_a_tenants_file(tmp_path: Path) -> None:
    path, folder = tmp_path / "forebay.yaml", tmp_path / "tenants.d"
    path.write_text(FLEET)
    folder.mkdir()
    (folder / "acme.yaml").write_text(ACME)
    for other in (".acme.yaml.swp", ".b.yaml", "acme.yaml~", "README"):
        (folder / other).write_text("not: [ours")
    tenants = load(path, ENVIRON).tenants
    assert tenants is not None and list(tenants) == ["acme"]
    (folder / "beta.yml").write_text(BETA)
    (folder / "Delta.YAML").write_text(BETA)
    (folder / "gone.yaml").symlink_to(tmp_path / "nowhere")
    (folder / "nested.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    with pytest.raises(ConfigErrors) as caught:
        load(path, ENVIRON)
    assert [str(error) for error in caught.value.errors] == [
        f"{folder}/Delta.YAML: would not be read: name it delta.yaml",
        f"{folder}/beta.yml: would not be read: name it beta.yaml",
        f"{folder}/gone.yaml: cannot be read: No such file or directory",
        f"{folder}/nested.yaml: cannot be read: Is a directory",
        f"{folder}/pipe.yaml: cannot be read: a named pipe, not a file",
    ]


def test_row_40_all_errors_of_all_files_come_in_one_run_each_with_its_place() -> None:
    acme = """\
version: 1
id: acmee
weigth: 3
weight: 0
models: [{name: mm}, {name: m, aliases: [n, n]}]
keys:
  - {id: K3, sha256: abc, expires: 2027-02-01, limits: {rpm: 0}}
class: urgent
class: batch
"""
    beta = "version: 1\nid: beta\nmodels: [*m]\n"
    fleet = FLEET + "admission: {max_queued: 0}\nlisten: {prot: 1}\n"
    assert errors_of(fleet, files(acme=acme, beta=beta, gamma="a: [b\n")) == [
        "f.yaml:6:25: admission.max_queued: must be a whole number from 1 to 1000000, not 0",
        "f.yaml:7:10: listen.prot: unknown key; did you mean 'port'?",
        "tenants.d/acme.yaml:2:5: id: must be 'acme', the file's name without .yaml, not 'acmee'",
        "tenants.d/acme.yaml:3:1: weigth: unknown key; did you mean 'weight'?",
        "tenants.d/acme.yaml:4:9: weight: must be a number from 0.1 to 100, not 0",
        "tenants.d/acme.yaml:5:17: models[0].name: there is no model 'mm'",
        "tenants.d/acme.yaml:5:45: models[1].aliases[1]: already names 'm' here",
        "tenants.d/acme.yaml:7:10: keys[0].id: must be a key's id: 12 of the characters 0 to 9 and a to z, not 'K3'",
        "tenants.d/acme.yaml:7:22: keys[0].sha256: must be the key's SHA-256: 64 hexadecimal digits",
        "tenants.d/acme.yaml:7:36: keys[0].expires: must be a time like 2027-02-01T00:00:00Z, not '2027-02-01'",
        "tenants.d/acme.yaml:7:62: keys[0].limits.rpm: must be a whole number from 1 to 10000000, not 0",
        "tenants.d/acme.yaml:8:8: class: must be 'critical', 'interactive', 'standard' or 'batch', not 'urgent'",
        "tenants.d/acme.yaml:9:1: class: given twice, first in line 8",
        "tenants.d/beta.yaml:3:10: models[0]: alias *m: write the value out",
        "tenants.d/gamma.yaml:2:1: not YAML: while parsing a flow sequence, did not find expected ',' or ']'",
    ]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("Beta", "Beta", ["not 'Beta': rename the file, say to beta.yaml", "not 'Beta'"]),
        ("Beta", "beta", ["not 'Beta': rename the file, say to beta.yaml"]),
        ("beta.eu", "beta", ["not 'beta.eu': rename the file"]),
    ],
)
def test_a_file_whose_name_can_be_no_id_is_to_be_renamed(name: str, given: str, said: list[str]) -> None:
    what = "must be a tenant's id (a to z, 0 to 9, '-'; at most 48 characters)"
    places = ["1:1: the file's name", "2:5: id:"]
    assert errors_of(FLEET, files(**{name: BETA.replace("beta", given)})) == [
        f"tenants.d/{name}.yaml:{place} {what}, {words}" for place, words in zip(places, said, strict=False)
    ]


def test_an_error_in_what_all_inherit_is_said_once_and_where_it_stands() -> None:
    fleet = FLEET + "tenant_defaults: {weight: 0, weigth: 1, models: [{name: x}], keys: []}\n"
    assert errors_of(fleet, files(acme=ACME.replace("models: [{name: m}]\n", ""), beta=BETA)) == [
        "f.yaml:6:27: tenant_defaults.weight: must be a number from 0.1 to 100, not 0",
        "f.yaml:6:30: tenant_defaults.weigth: unknown key; did you mean 'weight'?",
        "f.yaml:6:57: tenant_defaults.models[0].name: there is no model 'x'",
        "f.yaml:6:62: tenant_defaults.keys: unknown key",
    ]


CONTRADICTIONS = {
    "models: [{name: m}]": ("", ["1:1: models: required"]),
    "id: acme": ("", ["1:1: id: required"]),
    "[{name: m}]": ("[{name: m}, {name: m}]", ["3:28: models[1].name: model 'm' is named twice"]),
    "{name: m}]": (
        "{name: m, aliases: [n, m]}, {name: n}]",
        ["3:33: models[0].aliases[1]: already names 'm' here", "3:45: models[1].name: is also an alias of 'm'"],
    ),
    "keys": (
        "class: critical\nclass_ceiling: batch\nkeys",
        ["4:8: class: critical is more urgent than class_ceiling, batch"],
    ),
    "version: 1": (
        "version: 1\nclass_ceiling: batch",
        ["2:16: class_ceiling: batch is less urgent than class, standard"],
    ),
    f"[{KEY}]": (
        f"[{KEY}, {KEY.replace('ab', 'AB')}]",
        ["4:107: keys[1].id: a key of acme has this id", "4:129: keys[1].sha256: a key of acme has this hash"],
    ),
    "id: acme\n": ("id: acme\ncache: {group: g}\n", ["3:16: cache.group: means nothing with isolation: tenant"]),
    "\nid: acme": ("\ncache: {isolation: group}\nid: acme", ["2:20: cache.isolation: group: name it, cache.group"]),
    "\nid:": (
        "\ncache: {isolation: group, group: h}\nid:",
        ["2:34: cache.group: there is no group 'h' in isolation.groups"],
    ),
    "acme": ("Acme", ["2:5: id: must be a tenant's id (a to z, 0 to 9, '-'; at most 48 characters), not 'Acme'"]),
}


@pytest.mark.parametrize("old", CONTRADICTIONS, ids=repr)
def test_what_contradicts_itself_is_refused(old: str) -> None:
    new, expected = CONTRADICTIONS[old]
    assert old in ACME
    assert errors_of(FLEET, files(acme=ACME.replace(old, new, 1))) == [
        f"tenants.d/acme.yaml:{error}" for error in expected
    ]


def test_a_key_is_one_tenants_only() -> None:
    assert errors_of(FLEET, files(acme=ACME, beta=BETA.replace(OTHER, KEY))) == [
        "tenants.d/beta.yaml:4:13: keys[0].id: a key of acme has this id",
        "tenants.d/beta.yaml:4:35: keys[0].sha256: a key of acme has this hash",
    ]


def test_more_than_one_tenant_needs_a_salt_secret() -> None:
    fleet = FLEET.replace('isolation: {salt_secret: "${SALT}"}\n', "")
    assert read(fleet, "f.yaml", {}, files(acme=ACME)).config.tenants
    assert errors_of(fleet, files(acme=ACME, beta=BETA)) == [
        "f.yaml:1:1: isolation.salt_secret: required with more than one tenant"
    ]


def test_a_trust_group_names_tenants_that_are_there() -> None:
    fleet = FLEET.replace('{SALT}"', '{SALT}", groups: {g: [acme, beta], h: [acme], i: [acme, acme, gone]}')
    shared = "cache: {isolation: group, group: g}\n"
    assert errors_of(fleet, files(acme=ACME + shared, beta=BETA + shared.replace("g}", "i}"))) == [
        "f.yaml:2:66: isolation.groups.h: must name two or more",
        "f.yaml:2:84: isolation.groups.i[1]: tenant 'acme' is named twice",
        "f.yaml:2:90: isolation.groups.i[2]: there is no tenant 'gone'",
        "tenants.d/beta.yaml:5:34: cache.group: isolation.groups.i does not name 'beta'",
    ]
    good = fleet.replace(", h: [acme], i: [acme, acme, gone]", "")
    assert warnings_of(good, acme=ACME + shared, beta=BETA + shared) == []
    assert warnings_of(good, acme=ACME + shared, beta=BETA) == [
        "f.yaml:2:56: isolation.groups.g[1]: 'beta' does not use it: its file has no cache: {isolation: group, group: g}"
    ]


def test_an_engine_without_salt_serves_one_cache_domain() -> None:
    fleet = FLEET.replace("pools: [p, q]}", "pools: [p, q], engine: openai}")
    message = "openai takes no cache_salt: it may serve one cache domain, not tenant acme and tenant beta"
    assert errors_of(fleet, files(acme=ACME, beta=BETA)) == [f"f.yaml:5:76: endpoints[0].engine: {message}"]
    assert config(fleet, acme=ACME, beta=BETA.replace("[{name: n, aliases: [m]}]", "[]")).tenants
    keys = ACME.replace(f"[{KEY}]", f"[{KEY}, {OTHER}]\ncache: {{isolation: key}}")
    message = "openai takes no cache_salt: it may serve one cache domain, not key a3m9x2p7q1wz and key k3m9x2p7q1wz"
    assert errors_of(fleet, files(acme=keys)) == [f"f.yaml:5:76: endpoints[0].engine: {message}"]
    assert warnings_of(fleet.replace("openai", "trtllm"), acme=ACME, beta=BETA) == [
        "f.yaml:5:76: endpoints[0].engine: trtllm takes no cache_salt on completions, responses, messages:"
        " there tenants share its prefix cache"
    ]


def test_what_asks_for_no_key_and_what_does_cannot_be_meant_together() -> None:
    assert errors_of(FLEET + "listen: {allow_anonymous: true}\n", files(acme=ACME)) == [
        "f.yaml:6:27: listen.allow_anonymous: means nothing beside tenants.d: every request needs a key"
    ]
    assert errors_of(FLEET, None) == [
        "f.yaml:1:1: listen.host: 0.0.0.0 can be reached by others and no key is asked for:"
        " add tenants.d, listen on 127.0.0.1, or set listen.allow_anonymous: true"
    ]
    fleet = FLEET + "listen: {host: 127.0.0.1}\ntenant_defaults: {cache: {isolation: key}}\n"
    assert errors_of(fleet, None) == [
        "f.yaml:7:38: tenant_defaults.cache.isolation: key means nothing without tenants.d:"
        " there is one tenant, and no key is asked"
    ]


def test_what_is_useless_is_warned_of() -> None:
    key = KEY.replace("}", ", class_ceiling: critical}")
    assert warnings_of(acme=ACME.replace(KEY, key), beta=BETA.replace(OTHER, "")) == [
        "tenants.d/acme.yaml:4:116: keys[0].class_ceiling: is above the tenant's class_ceiling standard, which holds",
        "tenants.d/beta.yaml:4:7: keys: no keys: nobody can use this tenant",
    ]


def test_show_has_each_tenant_with_the_file_and_line_of_every_value() -> None:
    fleet = FLEET + "tenant_defaults:\n  class: batch\n  allow: {routes: [tokenize]}\n"
    text = ACME.replace(KEY, KEY.replace("}", ", expires: 2027-02-01T00:00:00Z}")) + "allow: {parameters: []}\n"
    shown = show(read(fleet, "f.yaml", ENVIRON, files(acme=text)))
    lines = shown.partition("---\n")[2].splitlines()
    origins = {line.split(":")[0].strip(" -"): line.rpartition("# ")[2] for line in lines if "#" in line}
    assert origins["weight"] == "default"
    assert origins["class"] == "f.yaml:7"
    assert origins["routes"] == "f.yaml:8"
    assert origins["parameters"] == "tenants.d/acme.yaml:5"
    assert origins["expires"] == "tenants.d/acme.yaml:4"
    assert origins["class_ceiling"] == "default: the tenant's"
    assert '    sha256: "(redacted)"' in shown and "abab" not in shown
    assert '    expires: "2027-02-01T00:00:00Z"' in shown
    assert tenant(
        "\n".join(line for line in lines).replace('"(redacted)"', "ab" * 32).replace("class_ceiling: null", "")
    ) == (tenant(text, fleet))


def test_every_field_of_the_schema_says_what_it_is_for() -> None:
    for name, section in schema(Tenant)["$defs"].items():
        for field, words in section["properties"].items():
            assert words.get("description") or "$ref" in words, f"{name}.{field}"


def test_the_schema_wants_nothing_that_may_be_inherited() -> None:
    """Else an editor finds fault with a file that leaves `models` to `tenant_defaults`."""
    assert schema(Tenant)["required"] == ["version", "id"]
    assert config(FLEET + "tenant_defaults: {models: [{name: m}]}\n", acme="version: 1\nid: acme\n").tenants


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_that_has_no_year_in_utc_is_refused(moment: str) -> None:
    [error] = errors_of(FLEET, files(acme=ACME.replace(KEY, f'{KEY[:-1]}, expires: "{moment}"}}')))
    assert f"keys[0].expires: must be a time like 2027-02-01T00:00:00Z, not '{moment}'" in error


@pytest.mark.parametrize(
    "field",
    ["name: ${TEAM}", 'name: "the ${TEAM}"', 'keys: [{id: k3m9x2p7q1wz, sha256: "%s", name: "${N}"}]' % ("ab" * 32)],
)
def test_a_variable_outside_a_secret_is_refused_also_where_any_text_may_stand(field: str) -> None:
    [error] = errors_of(FLEET, files(acme=f"version: 1\nid: acme\nmodels: []\n{field}\n"))
    assert "name: must be a name of 1 to 100 characters, not" in error and error.endswith(
        "; ${NAME} works only in secrets"
    )


def test_who_names_a_partition_that_is_not_there_is_told_that_alone() -> None:
    assert errors_of(FLEET, files(acme=ACME + "partition: finance\n")) == [
        "tenants.d/acme.yaml:5:12: partition: there is no partition 'finance'"
    ]

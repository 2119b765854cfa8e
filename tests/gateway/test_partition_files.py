"""Hard partitions in the files: what must meet, and the words and places of what does not."""

from collections.abc import Mapping

import pytest

from gateway.config import ConfigErrors, read
from policies import types

ENVIRON = {"SALT": "0123456789abcdef0123456789abcdef"}
FLEET = """\
version: 1
isolation: {salt_secret: "${SALT}"}
models: {m: {context_tokens: 4096}, n: {context_tokens: 4096}}
pools: {p: {model: m}, q: {model: n}}
partitions: {finance: {mode: hard, tenants: [bank]}}
endpoints:
  - {name: e0, url: "http://10.0.0.1:8000", pools: [p, q]}
  - {name: f0, url: "http://10.0.0.2:8000", pools: [p], partition: finance}
"""
BANK = "version: 1\nid: bank\npartition: finance\nmodels: [{name: m}]\n"
ACME = "version: 1\nid: acme\nmodels: [{name: m}, {name: n}]\n"


def errors_of(fleet: str = FLEET, **tenants: str) -> list[str]:
    files: Mapping[str, str] = {f"tenants.d/{name}.yaml": text for name, text in tenants.items()}
    try:
        read(fleet, "f.yaml", ENVIRON, files)
    except ConfigErrors as wrong:
        return [str(error) for error in wrong.errors]
    return []


def test_a_partition_reaches_the_core_with_its_endpoints_and_tenants() -> None:
    config = read(FLEET, "f.yaml", ENVIRON, {"tenants.d/bank.yaml": BANK, "tenants.d/acme.yaml": ACME}).config
    assert [endpoint.described().partition for endpoint in config.endpoints] == [types.SHARED, "finance"]
    tenants = config.settings().tenants
    assert {name: tenant.partition for name, tenant in tenants.items()} == {"bank": "finance", "acme": types.SHARED}


@pytest.mark.parametrize(
    ("fleet", "bank", "error"),
    [
        (("partition: finance", "partition: finanse"), ("", ""), "f.yaml:8:68: endpoints[1].partition: there is no partition 'finanse'; did you mean 'finance'?"),
        (("tenants: [bank]", "tenants: [bonk]"), ("", ""), "f.yaml:5:46: partitions.finance.tenants[0]: there is no tenant 'bonk'; did you mean 'bank'?"),
        (("tenants: [bank]", "tenants: [acme]"), ("", ""), "tenants.d/bank.yaml:3:12: partition: partitions.finance.tenants does not name 'bank'"),
        (("tenants: [bank]", "tenants: [bank, acme]"), ("", ""), "f.yaml:5:52: partitions.finance.tenants[1]: the file of 'acme' says partition: shared"),
        (("finance: {mode: hard, tenants: [bank]}", "finance: {mode: hard, tenants: []}"), ("", ""), "f.yaml:5:45: partitions.finance.tenants: must not be empty"),
        (("mode: hard", "mode: soft"), ("", ""), "f.yaml:5:30: partitions.finance.mode: must be 'hard', not 'soft'"),
        (("partitions: {", "partitions: {shared: {tenants: [acme]}, "), ("", ""), "f.yaml:5:14: partitions.shared: always exists, and is not hard: choose another name"),
        (("partitions: {", "partitions: {empty: {tenants: [acme]}, "), ("", ""), "f.yaml:5:14: partitions.empty: no endpoint belongs to this partition"),
        (("", ""), ("partition: finance", "partition: finanse"), "tenants.d/bank.yaml:3:12: partition: there is no partition 'finanse'; did you mean 'finance'?"),
        (("", ""), ("name: m", "name: n"), "tenants.d/bank.yaml:4:17: models[0].name: no endpoint of the partition finance serves 'n'"),
        (("pools: [p, q]", "pools: [q]"), ("", ""), "tenants.d/acme.yaml:3:17: models[0].name: no endpoint of the partition shared serves 'm'"),
        (("10.0.0.2", "10.0.0.1"), ("", ""), "f.yaml:8:21: endpoints[1].url: another endpoint is at 10.0.0.1:8000"),
        (("partition: finance", "partition: finance, long_lanes: 0"), ("", ""), "f.yaml:4:9: pools.p: all its endpoints of finance have long_lanes: 0 and it borrows from none: nobody would take a long prompt"),
    ],
)  # fmt: skip
def test_what_does_not_meet_is_an_error(fleet: tuple[str, str], bank: tuple[str, str], error: str) -> None:
    assert error in errors_of(FLEET.replace(*fleet), bank=BANK.replace(*bank), acme=ACME)


def test_no_cache_is_shared_across_a_partition() -> None:
    fleet = FLEET.replace("isolation: {", "isolation: {groups: {g: [acme, bank]}, ")
    cache = "cache: {isolation: group, group: g}\n"
    assert errors_of(fleet, bank=BANK + cache, acme=ACME + cache) == [
        "tenants.d/acme.yaml:4:34: cache.group: g: 'bank' is in another partition; no cache is shared across one",
        "tenants.d/bank.yaml:5:34: cache.group: g: 'acme' is in another partition; no cache is shared across one",
    ]


def test_an_engine_without_a_salt_may_serve_a_partition_of_its_own() -> None:
    fleet = FLEET.replace("partition: finance", "partition: finance, engine: openai")
    assert errors_of(fleet, bank=BANK, acme=ACME) == []


def test_values_of_a_wrong_type_are_said_once() -> None:
    fleet = FLEET.replace("partition: finance", "partition: {a: b}").replace("tenants: [bank]", "tenants: [[bank]]")
    told = errors_of(fleet, bank=BANK.replace("name: m", "name: {a: b}"), acme=ACME)
    assert len(told) == len({error.split(": ")[0] for error in told})


def test_without_tenant_files_there_is_no_partition() -> None:
    fleet = FLEET + "listen: {host: 127.0.0.1}\ntenant_defaults: {partition: finance}\n"
    with pytest.raises(ConfigErrors) as caught:
        read(fleet, "f.yaml", ENVIRON)
    assert [str(error) for error in caught.value.errors] == [
        "f.yaml:5:46: partitions.finance.tenants[0]: there is no tenant 'bank'",
        "f.yaml:10:30: tenant_defaults.partition: finance means nothing without tenants.d: there is one tenant, and no"
        " key is asked",
    ]

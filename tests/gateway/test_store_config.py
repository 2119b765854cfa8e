"""The section `redis` and `on_store_down`: what the core is told, what is refused, what only a restart can change."""

from gateway.config.changes import need_restart
from policies.types import Fleet
from tests.gateway.test_tenant_files import ACME, FLEET, config, errors_of, files

SECRET = 'isolation: {salt_secret: "${SALT}"}\n'
SHARED = FLEET + 'redis: {url: "redis://:hidden@10.0.0.5:6379/0", expected_replicas: 4, on_store_down: closed}\n'


def test_the_core_is_told_how_limits_are_shared() -> None:
    settings = config(SHARED, acme=ACME + "on_store_down: open\n").settings()
    assert settings.fleet == Fleet(sync_s=0.25, on_store_down="closed", replicas=4)
    assert settings.tenants["acme"].on_store_down == "open"
    assert config(SHARED, acme=ACME).settings().tenants["acme"].on_store_down == ""


def test_without_it_there_is_one_replica() -> None:
    assert config(FLEET, acme=ACME).settings().fleet is None


def test_a_policy_for_a_store_that_there_is_not_is_refused() -> None:
    assert errors_of(FLEET, files(acme=ACME + "on_store_down: open\n")) == [
        f"tenants.d/acme.yaml:{len(ACME.splitlines()) + 1}:16: on_store_down: means nothing without redis: there is no store"
    ]


def test_one_tenant_too_needs_a_salt_that_all_replicas_share() -> None:
    (error,) = errors_of(SHARED.replace(SECRET, ""), files(acme=ACME))
    assert error.endswith("required with redis: replicas must send engines the same salts")


def test_where_redis_is_is_nowhere_shown() -> None:
    made = config(SHARED, acme=ACME)
    assert "hidden" not in repr(made) + made.model_dump_json()
    assert made.checksum() == config(SHARED.replace("hidden", "other"), acme=ACME).checksum()


def test_what_the_store_is_only_a_restart_can_change_and_its_policy_at_once() -> None:
    before = config(SHARED, acme=ACME)

    def wrong(after: str) -> list[str]:
        return [".".join(map(str, problem.path)) for problem in need_restart(before, config(after, acme=ACME))]

    assert wrong(SHARED.replace("closed", "open").replace("replicas: 4", "replicas: 2")) == []
    assert wrong(SHARED.replace("replicas: 4", "replicas: 4, timeout_s: 0.2, connect_timeout_s: 0.3")) == []
    assert wrong(SHARED.replace("10.0.0.5", "10.0.0.6")) == ["redis.url"]
    assert wrong(FLEET) == ["redis"]


def test_a_cluster_has_one_database_and_is_on_the_network() -> None:
    made = config(SHARED.replace("6379/0", '6379/0", cluster: true, prefix: "x'), acme=ACME)
    assert made.redis is not None
    assert made.redis.cluster
    for url in ("redis://10.0.0.5:6379/1", "unix:///run/redis.sock", "redis://10.0.0.5?db=2"):
        (error,) = errors_of(FLEET + f'redis: {{url: "{url}", cluster: true}}\n', files(acme=ACME))
        assert error.endswith(
            "redis.cluster: a cluster's url is redis:// or rediss://, without a database other than 0"
        )
        assert url not in error

"""How single values are written in the file: each kind says what is allowed, in words and as JSON Schema.

A kind stands in `Annotated[type, Kind(...)]`. It sees the value as YAML has it (numbers are numbers, text is text)
and raises ValueError with the words a person needs. Kinds of secrets never repeat the value.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from gateway.config.problems import shown

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Environ = Mapping[str, str]

KIB, MIB, GIB = 1024, 1024**2, 1024**3
_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)?")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_URL = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?", re.IGNORECASE)


class Kind:
    """What one value may be."""

    def check(self, value: Any) -> object:
        """The value as the program wants it; ValueError says what is wrong."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """The same as JSON Schema."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.describe()


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from `low` to `high`."""

    low: int
    high: int

    def check(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            band = f"a whole number from {self.low} to {self.high}" if self.low < self.high else str(self.low)
            raise ValueError(f"must be {band}, not {shown(value)}")
        return value

    def describe(self) -> dict[str, object]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Number(Kind):
    """A number from `low` to `high`, or 0 where `off` is set."""

    low: float
    high: float
    off: bool = False
    unit: str = "seconds"

    def check(self, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and (self.low <= value <= self.high or (self.off and value == 0)):  # false for NaN
            return float(value)
        raise ValueError(f"must be {self._words()}, not {shown(value)}")

    def describe(self) -> dict[str, object]:
        band: dict[str, object] = {"type": "number", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [{"const": 0}, band]} if self.off else band

    def _words(self) -> str:
        what = "a number of seconds" if self.unit == "seconds" else "a number"
        return f"{'0 (off) or ' if self.off else ''}{what} from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Size(Kind):
    """A number of bytes, plain or with a unit: `512MiB`."""

    low: int
    high: int

    def check(self, value: Any) -> int:
        number = _bytes(value)
        if number is None or not self.low <= number <= self.high:
            raise ValueError(f"must be a size from {size_text(self.low)} to {size_text(self.high)}, not {shown(value)}")
        return number

    def describe(self) -> dict[str, object]:
        plain = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [plain, {"type": "string", "pattern": "^[0-9]{1,15}(B|KiB|MiB|GiB)?$"}], "x-size": True}


@dataclass(frozen=True)
class Text(Kind):
    """Text that matches `pattern` as a whole; `what` names it to people."""

    pattern: str
    what: str
    lower: bool = False
    secret: bool = False

    def fits(self, value: str) -> bool:
        """Whether it is such a text."""
        return re.fullmatch(self.pattern, value) is not None

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not self.fits(value) or _no_reference(value):
            hint = " (write it in quotes)" if isinstance(value, bool | int | float) else ""
            if self.secret:
                raise ValueError(f"must be {self.what}{hint}")
            raise ValueError(f"must be {self.what}, not {shown(value)}{hint}{_no_reference(value)}")
        return value.lower() if self.lower else value

    def describe(self) -> dict[str, object]:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True)
class Moment(Kind):
    """A point in time as RFC 3339 has it, with its offset: a day alone would leave open whose midnight is meant."""

    def check(self, value: Any) -> datetime:
        words = f"must be a time like 2027-02-01T00:00:00Z, not {shown(value)}"
        if not isinstance(value, str) or not _MOMENT.fullmatch(value):
            raise ValueError(words)
        try:
            found = datetime.fromisoformat(value)
            found.astimezone(UTC)  # in UTC it must have a year, too
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{words}: {error}") from None
        return found

    def describe(self) -> dict[str, object]:
        return {"type": "string", "format": "date-time"}


@dataclass(frozen=True)
class Host(Kind):
    """An address or name to listen on."""

    def check(self, value: Any) -> str:
        if isinstance(value, str) and (_is_address(value) or _HOST_NAME.fullmatch(value)):
            return value
        raise ValueError(f"must be an IP address or a host name, not {shown(value)}{_no_reference(value)}")

    def describe(self) -> dict[str, object]:
        return {"type": "string"}


@dataclass(frozen=True)
class Network(Kind):
    """A range of IP addresses, `10.0.0.0/8`, or one address."""

    def check(self, value: Any) -> IpNetwork:
        if not isinstance(value, str):
            raise ValueError(f"must be a network like 10.0.0.0/8, not {shown(value)}")
        try:
            return ipaddress.ip_network(value)
        except ValueError as error:
            raise ValueError(f"must be a network like 10.0.0.0/8: {error}") from None

    def describe(self) -> dict[str, object]:
        return {"type": "string"}


@dataclass(frozen=True)
class EngineUrl(Kind):
    """`http(s)://host[:port]` and nothing after it: no path comes from a client, none from here."""

    def check(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be a URL like http://10.0.0.11:8000, not {shown(value)}")
        self._reject(value)
        return value.rstrip("/")

    def _reject(self, value: str) -> None:
        scheme, mark, rest = value.partition("://")
        authority, slash, path = rest.partition("/")
        if "@" in authority:  # first, and without the value: it may hold a password
            raise ValueError("must not hold a user name or password")
        if not mark or scheme.lower() not in ("http", "https"):
            raise ValueError(f"must begin with http:// or https://, not {shown(value)}{_no_reference(value)}")
        if "?" in rest or "#" in rest:
            raise ValueError("must end after the port: no query, no fragment")
        if path:
            raise ValueError(f"must end after the port: paths come from the route table, not {shown(slash + path)}")
        if url_parts(value) is None:
            raise ValueError(f"must be a URL like http://10.0.0.11:8000, not {shown(value)}{_no_reference(value)}")

    def describe(self) -> dict[str, object]:
        return {"type": "string", "pattern": "^https?://[^/@?#]+/?$"}


@dataclass(frozen=True)
class EventsUrl(Kind):
    """`tcp://host:port`, where an engine publishes over ZMQ. Refused where pyzmq is not installed."""

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(self.describe()["pattern"], value) or not self._parts(value):
            raise ValueError(f"must be like tcp://10.0.0.11:5557, not {shown(value)}{_no_reference(value)}")
        if find_spec("zmq") is None:
            raise ValueError("needs pyzmq, which is not installed: pip install 'forebay[kv-events]'")
        return value

    @staticmethod
    def _parts(value: str) -> tuple[bool, str, int] | None:
        return url_parts("http" + value.removeprefix("tcp"))

    def describe(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^tcp://[^/@?#]+:[0-9]{1,5}$"}


@dataclass(frozen=True)
class Ref(Kind):
    """A secret: text in which `${NAME}` stands for an environment variable. Never repeated in a message."""

    what: str
    pattern: str
    as_bytes: bool = False
    least_bytes: int = 1

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._resolve)

    def _resolve(self, value: Any, info: ValidationInfo) -> str | bytes:
        if not isinstance(value, str):
            raise ValueError(f"must be {self.what}, written as text")
        environ: Environ = (info.context or {}).get("environ", {})
        secret = resolve(value, environ)
        data = secret.encode(errors="surrogateescape")
        if len(data) < self.least_bytes or not re.fullmatch(self.pattern, secret, re.DOTALL):
            raise ValueError(f"must be {self.what}")
        return data if self.as_bytes else secret

    def describe(self) -> dict[str, object]:
        return {"type": "string", "x-ref": True}


def resolve(text: str, environ: Environ) -> str:
    """`text` with every `${NAME}` replaced; ValueError names a variable that is not set."""
    for found in _REFERENCE.finditer(text):
        if found[1] not in environ:
            raise ValueError(f"the environment variable {found[1]} is not set")
    if "${" in _REFERENCE.sub("", text):
        raise ValueError("${ without a variable name and }: write ${NAME}")
    return _REFERENCE.sub(lambda found: environ[found[1]], text)


def url_parts(url: object) -> tuple[bool, str, int] | None:
    """(TLS?, host without brackets, port) of an engine's URL; None where it is none."""
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        return None
    tls, host = found[1].lower() == "https", found[2].lower()
    port = int(found[3]) if found[3] else (443 if tls else 80)
    if not 1 <= port <= 65535 or (host.startswith("[") and not _is_address(host[1:-1])):
        return None
    return tls, host.strip("[]"), port


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def plain_host(host: str) -> str:
    """One spelling for all that surely mean the same machine."""
    host = host.rstrip(".")
    if not _is_address(host):
        return "127.0.0.1" if host == "localhost" else host
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def size_text(number: int) -> str:
    """Bytes with the largest unit that divides them."""
    for unit, size in reversed(_UNITS.items()):
        if number and number % size == 0:
            return f"{number // size}{unit if unit != 'B' else ''}"
    return str(number)


def _bytes(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) * _UNITS[found[2] or "B"] if found else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _no_reference(value: object) -> str:
    return "; ${NAME} works only in secrets" if isinstance(value, str) and "${" in value else ""

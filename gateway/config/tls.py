"""The certificate of the data listener. It is read where the file is judged, so that a start or a reload fails with a place."""

import os
import ssl
from typing import Self

from pydantic import Field, model_validator

from gateway.config.files import must_be_regular
from gateway.config.section import FilePath, Section


class Tls(Section):
    """TLS on the data listener. Both files are read again when they change."""

    cert: FilePath = Field(
        description="Certificate and intermediate ones, PEM. Read again when the file changes. Without `tls`: plain HTTP."
    )
    key: FilePath = Field(description="Private key, PEM, not encrypted. TLS on or off needs a restart.")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        try:
            self.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except ssl.SSLError as error:
            reason = (error.reason or "not readable").lower().replace("_", " ")
            raise ValueError(f"certificate and key cannot be used: {reason}") from None
        except OSError as error:
            raise ValueError(f"certificate or key cannot be read: {error.strerror or error}") from None
        return self

    def context(self) -> ssl.SSLContext:
        """For a listener of HTTP/1.1."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.set_alpn_protocols(["http/1.1"])
        self.load(made)
        return made

    def load(self, context: ssl.SSLContext) -> None:
        """Have a context present this certificate from now on; raises OSError."""
        for path in (self.cert, self.key):
            must_be_regular(os.stat(path))
        context.load_cert_chain(self.cert, self.key, password=lambda: b"")  # never ask a terminal

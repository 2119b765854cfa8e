"""Who is asking: from the credential of a request to its tenant (tenancy.md 2, 7)."""

from gateway.tenants.book import Book, make_book
from gateway.tenants.identify import Tenants
from gateway.tenants.listing import KeyView, listing
from gateway.tenants.throttle import Throttle

__all__ = ["Book", "KeyView", "Tenants", "Throttle", "listing", "make_book"]

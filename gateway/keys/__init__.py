"""`forebay keys`: making, listing and blocking API keys in the tenants' files (tenancy.md 2)."""

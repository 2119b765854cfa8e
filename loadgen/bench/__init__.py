"""`forebay bench`: a scenario sent to a server in real time, and what can be said of it (docs/load-testing.md)."""

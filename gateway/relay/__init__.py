"""An engine's answer to a client, protocol to protocol: no task switch, no copy, no JSON per token (http.md 6, 7).

An `Attempt` waits for the head, then hands the body to one of three readers: `StreamReader` for event streams,
`PlainReader` for everything else that is 2xx, `ErrorReader` for the rest.
"""

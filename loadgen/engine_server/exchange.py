"""One request being answered: its sequences in the model, and the writing of what they give out.

A stream gets its 200 at once, before prefill, as vLLM does, or with its first token, as SGLang does; the role event comes
with the first token.
"""

import time
from typing import Protocol

from loadgen.engine_server.answer import Answer, Segment
from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.dialect import Dialect
from loadgen.engine_server.faulty import FaultyStream
from loadgen.engine_server.http import LAST_CHUNK, Connection, Headers, Request
from loadgen.engine_server.log import Entry
from loadgen.engine_server.shapes import DONE, Last, Shape, Template
from loadgen.engine_server.whole import WholeAnswer
from loadgen.faults import Fault
from loadgen.sim.sequence import Sequence

JSON = (b"content-type", b"application/json")
EVENT_STREAM: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"transfer-encoding", b"chunked"),
)


class Served(Sequence):
    """A sequence of the model that knows whom it answers."""

    __slots__ = ("choice",)
    choice: "Choice"


class Engine(Protocol):
    """What an exchange needs of its engine."""

    dialect: Dialect
    shows_cached: bool
    stream_interval: int

    def over(self, exchange: "Exchange", how: str) -> None:
        """The exchange has ended: stop its sequences, close its log entry."""


class Choice:
    """One sequence's part of an answer: how many tokens are given, which segment is open."""

    __slots__ = ("_around", "_held", "_plain_until", "_segment", "answer", "exchange", "given", "index", "sequence")

    def __init__(self, exchange: "Exchange", index: int, answer: Answer, sequence: Served) -> None:
        self.exchange = exchange
        self.index = index
        self.answer = answer
        self.sequence = sequence
        self.given = 0
        self._held = b""  # text of tokens that wait for the stream interval
        self._segment: Segment | None = None  # the open one
        self._around: Template = (b"", b"")
        self._plain_until = 0  # tokens before this one are an event each, with nothing else to do

    def token(self) -> None:
        """The model gave this sequence one more token."""
        position = self.given
        self.given = position + 1
        if position < self._plain_until:
            before, after = self._around
            self.exchange.send(before + self.answer.pieces[position] + after)
        elif self.exchange.ask.stream:
            self._stream(position)
        elif self.given == len(self.answer.pieces):
            self.exchange.choice_over()

    def _stream(self, position: int) -> None:
        """A token that opens a segment, is the last, is held back, or carries usage."""
        exchange, answer = self.exchange, self.answer
        segment = answer.segment(position)
        if segment is not self._segment:
            self._open(segment)
        self._held += answer.pieces[position]
        if self.given == len(answer.pieces):
            return self._finish(segment)
        if position == 0 or self.given % exchange.interval == 0:
            self._flush()
        if exchange.interval == 1 and exchange.shape.steady and not exchange.ask.continuous_usage:
            self._plain_until = answer.thinking if segment is Segment.REASONING else len(answer.pieces) - 1
        return None

    def _open(self, segment: Segment) -> None:
        exchange, shape = self.exchange, self.exchange.shape
        if self._segment is None:
            exchange.first_token()
            exchange.begin(self)
        else:
            self._flush()
            exchange.send_all(shape.close(self.index, self._segment))
        exchange.send_all(shape.open(self.index, segment, self.answer.tool))
        self._segment = segment
        self._around = shape.around(self.index, segment)

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            usage = self.exchange.running_usage(self, self.given) if self.exchange.ask.continuous_usage else b""
            self.exchange.send(self.exchange.shape.token(self.index, self._around, held, usage))

    def _finish(self, segment: Segment) -> None:
        exchange = self.exchange
        wants_usage = exchange.ask.continuous_usage or exchange.shape.always_counts
        usage = exchange.running_usage(self, self.given) if wants_usage else b""
        last = Last(index=self.index, segment=segment, text=self._held, answer=self.answer, usage=usage)
        exchange.send_all(exchange.shape.finish(last))
        exchange.choice_over()

    def cut_short(self) -> None:
        """End the choice with `finish_reason: abort`, as vLLM does on SIGTERM."""
        if self.given < len(self.answer.pieces):
            self.answer.finish = "abort"
            if self.exchange.ask.stream:
                if self._segment is None:
                    self._open(Segment.TEXT)
                self._finish(self._segment or Segment.TEXT)
            else:
                self.exchange.choice_over()


class Exchange:
    """A generation request from acceptance to its last byte."""

    def __init__(self, engine: Engine, request: Request, ask: Ask, entry: Entry, request_id: str) -> None:
        self.engine = engine
        self.id = request_id
        self.request = request
        self.ask = ask
        self.entry = entry
        self.faults: list[Fault] = []
        self.connection: Connection = request.connection
        self.interval = max(engine.stream_interval, ask.interval)
        self.choices: list[Choice] = []
        self.ended = False
        self._begun: set[int] = set()
        self._open = 0
        self._headed = False
        self._faulty: FaultyStream | None = None
        self.shape: Shape = engine.dialect.shapes[ask.route](request_id, ask)

    def start(self, choices: list[Choice], faults: list[Fault]) -> None:
        """Take the connection; a stream gets its head now where its dialect does not wait for the first token."""
        self.choices = choices
        self.faults = faults
        self._open = len(choices)
        self.connection.on_closed = self._client_left
        self.entry.status = 200
        if self.ask.stream:
            self._open_stream(choices)

    def _open_stream(self, choices: list[Choice]) -> None:
        early = any(fault.name == "role_early" for fault in self.faults)
        if early or self.engine.dialect.head_at_once:
            self._head()
        if self.faults:
            planned = sum(len(choice.answer.pieces) for choice in choices) + 1
            self._faulty = FaultyStream(self.connection, self.faults, planned, self._over)
            self._faulty.on_first = self._head
        if early:
            self.begin(choices[0])

    def _head(self) -> None:
        """The head of a stream, once."""
        if not self._headed:
            self._headed = True
            self.connection.head(200, EVENT_STREAM)

    def send(self, event: bytes) -> None:
        """One event to the client."""
        if self._faulty is None:
            self.connection.chunk(event)
        else:
            self._faulty.send(event)

    def send_all(self, events: list[bytes]) -> None:
        """Several events, each an HTTP chunk of its own."""
        for event in events:
            self.send(event)

    def begin(self, choice: Choice) -> None:
        """The events before a choice's first token, once."""
        if choice.index in self._begun:
            return
        self._begun.add(choice.index)
        wants_usage = self.ask.continuous_usage or self.shape.always_counts
        usage = self.running_usage(choice, 0) if wants_usage else b""
        self.send_all(self.shape.begin(choice.index, usage))

    def first_token(self) -> None:
        """Note when the first token of any choice was given out."""
        if self.entry.first_s is None:
            self.entry.first_s = time.monotonic()
            if self.ask.stream and self._faulty is None:
                self._head()

    def choice_over(self) -> None:
        """One choice has its last token."""
        self._open -= 1
        if self._open:
            return
        if self.ask.stream:
            self._end_stream()
        else:
            self._send_whole()

    def running_usage(self, choice: Choice, given: int) -> bytes:
        """Usage of one choice when so many of its tokens are given."""
        cached = self._cached() if self.shape.always_counts else None
        return self.shape.usage(choice.answer.prompt_tokens, given, cached, 0)

    def usage(self) -> bytes:
        """Usage of the whole answer. `n` choices share one prompt; each prompt of a list counts."""
        prompt = sum(choice.answer.prompt_tokens for choice in self.choices[:: self.ask.n])
        output = sum(choice.given for choice in self.choices)
        reasoning = sum(min(choice.given, choice.answer.thinking) for choice in self.choices)
        return self.shape.usage(prompt, output, self._cached(), reasoning)

    def cut_short(self) -> None:
        """End every open choice with `finish_reason: abort`."""
        for choice in self.choices:
            if not self.ended:
                choice.cut_short()

    def fail(self, refusal: Refusal) -> None:
        """The engine gives the request up after it took it: an error event in a stream, else an error answer."""
        if self.ended:
            return
        if self.ask.stream:
            self.first_token()
            self.send_all([self.engine.dialect.error_event(refusal), DONE])
            self._end_message("refused")
        else:
            self.entry.status = refusal.status
            body = self.engine.dialect.error_body(refusal, self.ask.route)
            self.connection.head(refusal.status, [JSON, (b"content-length", b"%d" % len(body))])
            self.connection.write(body)
            self._over("refused")

    def _cached(self) -> int | None:
        cached = sum(choice.sequence.cached or 0 for choice in self.choices[:: self.ask.n])
        return cached if self.engine.shows_cached or self.shape.shows_cached else None

    def _end_stream(self) -> None:
        usage = self.usage() if self.ask.include_usage else b""
        self.send_all(self.shape.end(usage))
        self._end_message("aborted" if self.choices[0].answer.finish == "abort" else "finished")

    def _end_message(self, how: str) -> None:
        if self._faulty is not None:
            self._faulty.finish()
            return
        self.connection.write(LAST_CHUNK)
        self._over(how)

    def _send_whole(self) -> None:
        self.first_token()
        answers = [(choice.answer, choice.given) for choice in self.choices]
        body = self.shape.whole(answers, self.usage())
        WholeAnswer(self.connection, self.faults, self._over).send(200, [JSON], body)

    def _over(self, how: str) -> None:
        """Everything is written."""
        if self.ended:
            return
        self.ended = True
        self.connection.done()
        self.engine.over(self, how)

    def _client_left(self) -> None:
        if not self.ended:
            self.ended = True
            self.entry.abort_seen_s = time.monotonic()
            if self._faulty is not None:
                self._faulty.stop()
            self.engine.over(self, "client left")

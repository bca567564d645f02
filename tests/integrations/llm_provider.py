"""A provider of language models on 127.0.0.1: it streams in the shapes of OpenAI and Anthropic."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INPUT, OUTPUT = 19, 20  # the tokens it reports
TEXT = "y" * 40  # ten tokens, as we estimate
TEXTS = 3

Event = tuple[str | None, dict[str, Any] | str]


def chat_events(asked: dict[str, Any]) -> list[Event]:
    """Chunks of chat completions; their usage only comes to those who ask for it."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4"}
    delta = {"role": "assistant", "content": TEXT}
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    found: list[Event] = [(None, {**head, "choices": [choice]}) for _ in range(TEXTS)]
    if (asked.get("stream_options") or {}).get("include_usage"):
        usage = {
            "prompt_tokens": INPUT,
            "completion_tokens": OUTPUT,
            "total_tokens": INPUT + OUTPUT,
        }
        found.append((None, {**head, "choices": [], "usage": usage}))
    return [*found, (None, "[DONE]")]


def message_events(asked: dict[str, Any]) -> list[Event]:
    """Events of Anthropic's messages: the input at the start, the output at the end."""
    usage = {"input_tokens": INPUT, "output_tokens": 1}
    message = {
        "id": "m", "type": "message", "role": "assistant", "model": asked["model"], "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    delta = {"type": "text_delta", "text": TEXT}
    text = {"type": "content_block_delta", "index": 0, "delta": delta}
    block = {"type": "text", "text": ""}
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *(text for _ in range(TEXTS)),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
         "usage": {"output_tokens": OUTPUT}},
        {"type": "message_stop"},
    ]  # fmt: skip
    return [(event["type"], event) for event in told]


def response_events(asked: dict[str, Any]) -> list[Event]:
    """Events of OpenAI's responses, which report their usage unasked."""
    response = {
        "id": "r", "object": "response", "created_at": 1, "model": asked["model"], "output": [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    usage = {
        "input_tokens": INPUT, "output_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    text = {
        "type": "response.output_text.delta", "delta": TEXT, "item_id": "i", "output_index": 0,
        "content_index": 0, "logprobs": [],
    }  # fmt: skip
    told: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        *(text for _ in range(TEXTS)),
        {"type": "response.completed", "response": {**response, "usage": usage}},
    ]
    return [
        (event["type"], {**event, "sequence_number": number}) for number, event in enumerate(told)
    ]


SHAPES = {
    "/v1/chat/completions": chat_events,
    "/v1/messages": message_events,
    "/v1/responses": response_events,
}


class Provider(ThreadingHTTPServer):
    """What it does is said beforehand: `status` refuses; after `after` events it does `then`, which
    is to "cut" the line, "hang" until the client hangs up, send an "error", or "end" as usual."""

    daemon_threads = True
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.after = 0
        self.then = "end"
        self.asked: list[dict[str, Any]] = []
        self.hung_up = threading.Event()
        self.stopping = threading.Event()

    def handle_error(self, *args: Any) -> None:
        """Clients hang up: no news."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        provider = self.server
        provider.asked.append(asked)
        usage_asked = (asked.get("stream_options") or {}).get("include_usage")
        if usage_asked and self.path == "/v1/responses":
            self._answer(400, {"error": {"message": "Unknown parameter: include_usage"}})
            return
        if provider.status != 200:
            self._answer(provider.status, {"error": {"message": "no", "type": "no"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("x-ratelimit-remaining-tokens", "4000")
        self.end_headers()
        for number, event in enumerate(SHAPES[self.path](asked)):
            if provider.then != "end" and number == provider.after:
                self._interrupt()
                return
            self._send(event)
        self.wfile.write(b"0\r\n\r\n")

    def _interrupt(self) -> None:
        self.close_connection = True
        if self.server.then == "error":
            self._send(("error", {"type": "error", "error": {"type": "x", "message": "no more"}}))
            self.wfile.write(b"0\r\n\r\n")
        elif self.server.then == "hang":
            self.connection.settimeout(0.05)
            while not self.server.stopping.is_set():
                try:
                    gone = self.connection.recv(1) == b""
                except TimeoutError:
                    continue
                except OSError:
                    gone = True
                if gone:
                    self.server.hung_up.set()
                    return
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, event: Event) -> None:
        name, data = event
        line = f"event: {name}\n" if name else ""
        text = data if isinstance(data, str) else json.dumps(data)
        body = f"{line}data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
        self.wfile.flush()

    def _answer(self, status: int, problem: dict[str, Any]) -> None:
        body = json.dumps(problem).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@contextmanager
def provider_running() -> Iterator[Provider]:
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            provider.stopping.set()
            provider.shutdown()
            thread.join()

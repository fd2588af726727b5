"""The routes: OpenAI's speech API, with lists of models and voices, health and metrics.

docs/guide.md describes it for users. `SpeechResponse` sends speech while it is computed, and ends a request whose
client has gone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from config.errors import UserError, without_code_marks
from config.schema import SamplingOptions, ServeOptions
from core.serving.access import Refusal, error_body
from core.serving.engine import ShuttingDown, SpeechEngine, TooManyRequests
from core.serving.metrics import Metrics
from core.serving.served_models import LoadedVoice, ServedModels, UnknownName
from core.serving.sound_formats import CONTENT_TYPES, HAVE_LENGTH, SoundEncoder, SoundFormat, open_encoder
from core.serving.word_times import align_words
from core.speech.continuous import SpeechRequest
from core.speech.synthesis import SynthesizedChunk
from core.speech.transcription import CTCModel
from data.acoustics.time_stretch import TimeStretch

Result = TypeVar("Result")
_RETRY_AFTER_S = 2
_KNOWN_ERRORS = (UserError, TooManyRequests, ShuttingDown, RuntimeError, MemoryError, OSError)
_LARGEST_SEED = 2**53


class SpeechBody(BaseModel):
    """The body of a request for speech. Fields that OpenAI does not have are marked as ours in docs/guide.md."""

    model_config = ConfigDict(extra="ignore")

    input: str
    model: str = ""
    voice: str | dict[str, Any] = ""
    response_format: SoundFormat = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4.0)] = 1.0
    stream_format: Literal["audio", "sse"] | None = None
    stream: bool | None = None
    language: str = ""
    seed: Annotated[int, Field(ge=0, le=_LARGEST_SEED)] = 0
    instructions: str | None = None
    timestamps: bool = False

    @property
    def voice_name(self) -> str:
        return str(self.voice.get("id", "")) if isinstance(self.voice, dict) else self.voice

    @property
    def streamed(self) -> bool:
        """Whether the sound is sent while it is computed."""
        if self.stream is not None:
            return self.stream
        return self.stream_format is not None or self.response_format not in HAVE_LENGTH


class APIError(Exception):
    """An error that the client gets."""

    def __init__(self, status: int, message: str, code: str, field_name: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.field = status, message, code, field_name

    @property
    def body(self) -> bytes:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return error_body(self.message, self.code, self.field, kind)


def api_error(error: Exception) -> APIError:
    """What a client is told of an error."""
    match error:
        case APIError():
            return error
        case UnknownName():
            status = 404 if error.field == "model" else 400
            return APIError(status, _sentence(error), f"{error.field}_not_found", error.field)
        case UserError():
            return APIError(400, _sentence(error), "invalid_value", "input")
        case TooManyRequests():
            return APIError(429, "Too many requests are computed or wait. Try again later.", "rate_limit_exceeded")
        case ShuttingDown():
            return APIError(503, "The server is about to end.", "shutting_down")
    return APIError(500, f"The speech could not be computed: {type(error).__name__}.", "internal_error")


def _sentence(error: UserError) -> str:
    return without_code_marks(f"{error.message} {error.hint}".strip())


@dataclass
class SpeechServer:
    """What the routes work with."""

    models: ServedModels
    engine: SpeechEngine
    options: ServeOptions
    metrics: Metrics = field(default_factory=Metrics)
    recognisers: dict[tuple[str, str], CTCModel] = field(default_factory=dict)  # Keys: reference, language.
    loader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "loader"))

    async def in_loader(self, work: Callable[..., Result], *arguments: object) -> Result:
        """`work` in the one thread that loads models, so that no two requests load the same model at once."""
        return await asyncio.get_running_loop().run_in_executor(self.loader, work, *arguments)

    async def open_speech(self, body: SpeechBody) -> SpeechResponse:
        """Check a request and load what it needs; its speech is computed when the response is sent."""
        began = time.monotonic()
        if not body.input.strip():
            raise APIError(400, "The input is empty. Send at least one word.", "invalid_value", "input")
        if any("\ud800" <= letter <= "\udfff" for letter in body.input):
            raise APIError(400, "The input has half of a surrogate pair, which is no character.", "invalid_value",
                           "input")
        if len(body.input) > self.options.max_characters:
            raise APIError(400, f"The input has {len(body.input)} characters; at most {self.options.max_characters} "
                                "are allowed. Send it in parts.", "string_above_max_length", "input")
        if body.timestamps and body.stream_format != "sse":
            raise APIError(400, "Word times are sent as events. Set stream_format to sse.", "invalid_value",
                           "timestamps")
        reference = self.models.find(body.model)
        self.engine.admit()
        prepared = False
        try:
            response = await self.in_loader(self._prepare, body, reference, began)
            prepared = True
            return response
        finally:
            if not prepared:
                self.engine.release()

    def _prepare(self, body: SpeechBody, reference: str, began: float) -> SpeechResponse:
        voice = self.models.open(reference, body.voice_name, body.language, (body.instructions or "").strip())
        chunks = voice.synthesizer.split(body.input, voice.language)
        recogniser = self._recogniser(reference, voice) if body.timestamps else None
        encoder = open_encoder(body.response_format, voice.synthesizer.sample_rate, body.streamed)
        return SpeechResponse(self, body, reference, voice, chunks, encoder, recogniser, began)

    def _recogniser(self, reference: str, voice: LoadedVoice) -> CTCModel:
        key = reference, voice.language
        if key not in self.recognisers:
            self.recognisers[key] = self.models.recogniser(reference, voice)
        return self.recognisers[key]


class SpeechResponse(Response):
    """Speech as it is computed: bytes of a sound file, or events with parts of one."""

    def __init__(self, server: SpeechServer, body: SpeechBody, reference: str, voice: LoadedVoice, chunks: Any,
                 encoder: SoundEncoder, recogniser: CTCModel | None, began: float) -> None:
        self._server, self._body, self._reference, self._voice = server, body, reference, voice
        self._chunks, self._encoder, self._recogniser, self._began = chunks, encoder, recogniser, began
        self._stretch = TimeStretch(voice.synthesizer.sample_rate, body.speed)
        self._sound: list[np.ndarray] = []  # Word times need the whole sound.
        self._audio_s = 0.0
        self._encoding, self._closed = threading.Lock(), False  # the encoder is not safe for threads
        self._sent = False  # whether the status and the headers were sent
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[SynthesizedChunk | Exception | None]()

        def put(part: SynthesizedChunk | Exception | None) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(parts.put_nowait, part)

        # The engine calls `put` from its own thread.
        request = SpeechRequest(self._voice.synthesizer, self._voice.language, self._chunks,
                                SamplingOptions(seed=self._body.seed), put, put, self._began)
        outcome = "error"
        try:
            # The request ends with its last chunk, or when its client has left.
            self._server.engine.submit(request)
            sender = asyncio.create_task(self._send_speech(parts, send))
            watcher = asyncio.create_task(_wait_until_gone(receive))
            await asyncio.wait((sender, watcher), return_when=asyncio.FIRST_COMPLETED)
            watcher.cancel()
            if sender.done():
                sender.result()
                outcome = "finished"
            else:
                outcome = "cancelled"
                sender.cancel()
                with suppress(asyncio.CancelledError, *_KNOWN_ERRORS):
                    await sender
        except _KNOWN_ERRORS as error:
            await self._send_error(send, error)
        finally:
            self._server.engine.cancel(request)
            self._server.engine.release()
            self._count(outcome)
            # Another thread may still encode: closing waits for it, and must not hold up the other requests.
            await asyncio.shield(asyncio.to_thread(self._close))

    async def _send_speech(self, parts: asyncio.Queue[SynthesizedChunk | Exception | None], send: Send) -> None:
        pieces: list[bytes] = []
        while (part := await parts.get()) is not None:
            if isinstance(part, Exception):
                raise part
            if not self._audio_s:
                first_s = time.monotonic() - self._began
                self._server.metrics.first_audio.labels(self._reference).observe(first_s)
            self._audio_s += len(part.waveform) / self._voice.synthesizer.sample_rate
            self._server.metrics.finish_reasons.labels(self._reference, part.finish_reason).inc()
            data = await asyncio.to_thread(self._encode, part.waveform.numpy())
            if self._body.streamed:
                await self._send_part(send, data)
            else:
                pieces.append(data)
        pieces.append(await asyncio.to_thread(self._finish))
        if self._body.streamed:
            await self._send_part(send, pieces[0])
            await self._send_end(send)
            return
        data = b"".join(pieces)
        if self._body.stream_format == "sse":
            await self._send_part(send, data)
            await self._send_end(send)
            return
        await self._send_start(send, len(data))
        await send({"type": "http.response.body", "body": data})

    def _encode(self, waveform: np.ndarray) -> bytes:
        with self._encoding:
            if self._closed:
                return b""
            stretched = self._stretch.push(waveform.astype(np.float32))
            if self._recogniser is not None:
                self._sound.append(stretched)
            return self._encoder.push(stretched)

    def _finish(self) -> bytes:
        with self._encoding:
            if self._closed:
                return b""
            tail = self._stretch.finish()
            if self._recogniser is not None:
                self._sound.append(tail)
            return self._encoder.push(tail) + self._encoder.finish()

    def _close(self) -> None:
        """Close the encoder; a thread may still encode for a client that has left."""
        with self._encoding:
            self._closed = True
            self._encoder.close()

    async def _send_part(self, send: Send, data: bytes) -> None:
        if not data:
            return
        if not self._sent:
            await self._send_start(send, None)
        if self._body.stream_format == "sse":
            data = _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _send_end(self, send: Send) -> None:
        if not self._sent:
            await self._send_start(send, None)
        data = b""
        if self._body.stream_format == "sse":
            end: dict[str, object] = {"type": "speech.audio.done", "usage": self._usage()}
            if self._recogniser is not None:
                end["words"] = await asyncio.to_thread(self._word_times, self._recogniser)
            data = _event(end)
        await send({"type": "http.response.body", "body": data})

    def _usage(self) -> dict[str, int]:
        """Tokens of the text, and frames of speech in hundredths of a second."""
        texts = sum(len(chunk.ids) or len(chunk.text) for chunk in self._chunks)
        frames = round(100 * self._audio_s)
        return {"input_tokens": texts, "output_tokens": frames, "total_tokens": texts + frames}

    def _word_times(self, recogniser: CTCModel) -> list[dict[str, object]]:
        waveform, sample_rate = np.concatenate(self._sound), self._voice.synthesizer.sample_rate
        words = align_words(self._body.input, waveform, sample_rate, recogniser)
        return [{"word": word.word, "start": word.start_s, "end": word.end_s} for word in words]

    async def _send_start(self, send: Send, length: int | None) -> None:
        """The status and the headers; a body without a length is sent in chunks."""
        self._sent = True
        events = self._body.stream_format == "sse"
        content_type = "text/event-stream; charset=utf-8" if events else CONTENT_TYPES[self._body.response_format]
        headers = {"content-type": content_type, "x-model": self._reference, "x-model-sha256": self._voice.model_hash,
                   **({} if length is None else {"content-length": str(length)})}
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(name.encode(), value.encode()) for name, value in headers.items()]})

    async def _send_error(self, send: Send, error: Exception) -> None:
        response = api_error(error)
        if not self._sent:
            await _error_response(response)({"type": "http"}, _nothing, send)
            return
        if self._body.stream_format == "sse":
            await send({"type": "http.response.body", "more_body": True,
                        "body": _event({"type": "error", **json.loads(response.body)})})
            await send({"type": "http.response.body", "body": b""})
            return
        raise error  # the connection is cut, so that the client sees that the sound is not complete

    def _count(self, outcome: str) -> None:
        metrics = self._server.metrics
        metrics.requests.labels(self._reference, self._body.response_format, outcome).inc()
        metrics.audio_seconds.labels(self._reference).inc(self._audio_s)
        if outcome == "finished" and self._audio_s:
            factor = (time.monotonic() - self._began) / self._audio_s
            metrics.real_time_factor.labels(self._reference).observe(factor)


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n\n"


async def _nothing() -> Any:
    raise AssertionError("an error reads no request")


async def _wait_until_gone(receive: Receive) -> None:
    """Return when the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _error_response(error: APIError) -> Response:
    headers = {"retry-after": str(_RETRY_AFTER_S)} if error.status in (429, 503) else {}
    return Response(error.body, error.status, headers, "application/json")


def build_api(server: SpeechServer) -> FastAPI:
    """The app with its routes; `core.serving.access.GuardedServer` stands before it."""
    api = FastAPI(title="Lisan speech server", docs_url=None, redoc_url=None, openapi_url=None)

    async def create_speech(body: SpeechBody) -> Response:
        return await server.open_speech(body)

    async def list_models() -> dict[str, object]:
        described = [await server.in_loader(server.models.describe, name) for name in server.models.references]
        return {"object": "list", "data": [
            {"id": model.reference, "object": "model", "created": model.created, "owned_by": "lisan",
             "languages": model.languages, "default_language": model.default_language, "sha256": model.model_hash}
            for model in described]}

    async def list_voices(model: str = "") -> dict[str, object]:
        described = await server.in_loader(server.models.describe, server.models.find(model))
        return {"object": "list", "model": described.reference, "voices": list(described.voices),
                "data": [{"id": name, "name": name, "object": "voice"} for name in described.voices]}

    async def health() -> dict[str, object]:
        return {"status": "ok", "models": list(server.models.references), "requests": server.engine.requests}

    async def metrics() -> Response:
        server.metrics.waiting.set(server.engine.requests)
        server.metrics.rows.set(server.engine.rows)
        return Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    api.add_api_route("/v1/audio/speech", create_speech, methods=["POST"], response_model=None)
    api.add_api_route("/v1/models", list_models, methods=["GET"])
    api.add_api_route("/v1/audio/voices", list_voices, methods=["GET"])
    api.add_api_route("/health", health, methods=["GET"])
    api.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)

    # All errors have the form of OpenAI's API, so that its clients can show them.
    async def known_error(_request: Request, error: Exception) -> Response:
        return _error_response(api_error(error))

    async def invalid_body(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _error_response(_validation_error(error))

    async def no_route(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = error.code if isinstance(error, Refusal) else "not_found"
        return _error_response(APIError(error.status_code, f"{error.detail.rstrip('.')}.", code))

    for kind in (APIError, UserError, TooManyRequests, ShuttingDown, Exception):
        api.add_exception_handler(kind, known_error)
    api.add_exception_handler(RequestValidationError, invalid_body)
    api.add_exception_handler(HTTPException, no_route)
    return api


def _validation_error(error: RequestValidationError) -> APIError:
    """The first fault of a body, with the field, the value and what is expected."""
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"] if part != "body")
    value = "" if fault["type"] in ("missing", "json_invalid") else f", not {str(fault.get('input'))[:60]!r}"
    if fault["type"] == "json_invalid":
        place = ""
    message = f"{place or 'body'}: {fault['msg']}{value}."
    return APIError(400, message, "invalid_value" if value else "invalid_request", place or None)



"""The speech server: formats, streams, names, limits, joining and leaving, errors, reloads."""

from __future__ import annotations

import base64
import gc
import io
import json
import shutil
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile

from config.errors import UserError
from config.schema import SamplingOptions, ServeOptions
from core.library import learning
from core.library.learning import Learning, LearningRecord, LearningReport
from core.library.lineage import Model
from core.model import loading
from core.model.loading import TTSModel
from core.serving.served_models import _emotion_of
from core.serving.sound_formats import CONTENT_TYPES, SoundFormat, open_encoder
from core.speech import model_cache
from core.workspace import Workspace
from data.acoustics.time_stretch import TimeStretch
from tests.trained import RUN, trained_world
from tests.unit.serving_world import JSON, Server, serving

TEXT = "the cat sees a dog. we go home now."
LONG = "five green birds sing and she reads a book. " * 20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.fixture(scope="module")
def server(world: Workspace) -> Iterator[Server]:
    workspace_voices = world.voices
    workspace_voices.mkdir(exist_ok=True)
    noise = 0.1 * np.random.default_rng(0).standard_normal(32000).astype(np.float32)
    soundfile.write(workspace_voices / "aunt.wav", noise, 16000)
    with serving(world, "served", models=(f"run:{RUN}", "base:tiny"), max_characters=2000, max_requests=8) as found:
        yield found


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.address, api_key="none needed", max_retries=0)


def decode(data: bytes, sound_format: SoundFormat, tmp_path: Path) -> tuple[np.ndarray, int]:
    """By ffmpeg, as samples and their rate."""
    path = tmp_path / f"sound.{sound_format}"
    path.write_bytes(data)
    raw = ["-f", "s16le", "-ar", "24000", "-ac", "1"] if sound_format == "pcm" else []
    shown = subprocess.run(["ffprobe", "-v", "error", *raw, "-show_entries", "stream=sample_rate,channels", "-of",
                            "json", str(path)], capture_output=True, check=True)
    stream = json.loads(shown.stdout)["streams"][0]
    assert stream.get("channels", 1) == 1
    decoded = subprocess.run(["ffmpeg", "-v", "error", *raw, "-i", str(path), "-f", "f32le", "-"],
                             capture_output=True, check=True)
    assert decoded.stderr == b""
    return np.frombuffer(decoded.stdout, "<f4"), int(stream["sample_rate"])


@pytest.mark.parametrize("sound_format", CONTENT_TYPES)
def test_the_openai_client_gets_each_format_whole_and_streamed(client: openai.OpenAI, server: Server, tmp_path: Path,
                                                               sound_format: SoundFormat) -> None:
    wanted, rate = soundfile.read(io.BytesIO(server.speak(TEXT, response_format="wav").body))
    whole = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format=sound_format,
                                       extra_body={"stream": False})
    with client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="alloy", input=TEXT, response_format=sound_format,
            extra_body={"stream": True}) as response:
        assert response.headers["content-type"] == CONTENT_TYPES[sound_format]
        assert "content-length" not in response.headers
        streamed = b"".join(response.iter_bytes())
    assert whole.response.headers["content-type"] == CONTENT_TYPES[sound_format]
    assert int(whole.response.headers["content-length"]) == len(whole.content)

    for data in (whole.content, streamed):
        sound, sound_rate = decode(data, sound_format, tmp_path)
        assert sound_rate == {"pcm": 24_000, "opus": 48_000}.get(sound_format, rate)
        assert len(sound) / sound_rate == pytest.approx(len(wanted) / rate, abs=0.15)  # AAC and MP3 add a frame or two
        assert np.abs(sound).max() == pytest.approx(np.abs(wanted).max(), rel=0.3)
    for data in (whole.content, *([] if sound_format == "flac" else [streamed])):  # it states no length there
        if sound_format not in ("pcm", "aac"):
            read, read_rate = soundfile.read(io.BytesIO(data))
            assert len(read) / read_rate == pytest.approx(len(wanted) / rate, abs=0.15)


def test_whole_wav_and_flac_are_the_default_and_state_their_length(server: Server) -> None:
    for sound_format in ("wav", "flac"):
        answer = server.speak(TEXT, response_format=sound_format)
        assert int(answer.headers["content-length"]) == len(answer.body)
        with soundfile.SoundFile(io.BytesIO(answer.body)) as file:
            assert file.frames == len(soundfile.read(io.BytesIO(answer.body))[0])
    assert "content-length" not in server.speak(TEXT, response_format="wav", stream_format="audio").headers


def test_events_carry_the_same_sound_and_end_with_the_usage(server: Server) -> None:
    sound = server.speak(TEXT, response_format="pcm").body
    answer = server.speak(TEXT, response_format="pcm", stream_format="sse")
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = answer.events
    assert len(deltas) > 1
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == sound
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(server: Server) -> None:
    first, again, other = (server.speak(TEXT, response_format="wav", seed=seed).body for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_the_sound_is_that_of_synthesize(server: Server, world: Workspace) -> None:
    import torch

    from core.model.loading import load
    from core.speech import evaluation
    from core.speech.synthesis import Synthesizer, join_chunks

    model = load(world, "base:tiny", torch.device("cpu"))
    voice = Synthesizer(model, "", evaluation.longest_texts(world, model))
    wanted = join_chunks(list(voice.synthesize(TEXT, "en", SamplingOptions(seed=7)))).numpy()
    answer = server.speak(TEXT, model="base:tiny", response_format="wav", seed=7)
    sound, rate = soundfile.read(io.BytesIO(answer.body))
    assert rate == voice.sample_rate
    assert np.abs(sound - wanted).max() < 1e-4  # 16 bits


def test_requests_at_once_are_computed_together_and_each_is_as_alone(server: Server) -> None:
    texts = [f"{TEXT} {word}." for word in ("birds", "a book", "green", "home", "sing", "cat")]
    alone = [server.speak(text, response_format="pcm").body for text in texts]
    together: dict[int, bytes] = {}
    most = [0.0]
    threads = [threading.Thread(target=lambda number=number, text=text: together.__setitem__(  # type: ignore[misc]
        number, server.speak(text, response_format="pcm").body)) for number, text in enumerate(texts)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most[0] = max(most[0], server.metric("lisan_sentences_computed"))
    assert most[0] > 1
    for number, wanted in enumerate(alone):
        assert len(together[number]) == len(wanted)
        difference = np.frombuffer(together[number], "<i2").astype(int) - np.frombuffer(wanted, "<i2")
        assert np.abs(difference).max() <= 2


def test_a_client_that_leaves_frees_its_rows(server: Server) -> None:
    connection = server.begin(LONG, response_format="pcm")
    deadline = time.monotonic() + 30
    while not server.metric("lisan_sentences_computed"):
        assert time.monotonic() < deadline
    connection.close()
    server.wait_until_idle()
    assert server.metric("lisan_requests_total") > 0
    assert 'outcome="cancelled"' in server.ask("GET", "/metrics").body.decode()


def test_models_and_voices_are_listed_and_served_by_these_names(client: openai.OpenAI, server: Server) -> None:
    models = [model.id for model in client.models.list()]
    assert models == [f"run:{RUN}", "base:tiny"]
    for model in (*models, RUN, "tiny", "tts-1-hd", ""):
        assert server.speak("a dog", model=model, response_format="pcm").status == 200
    for model in models:
        voices = json.loads(server.ask("GET", f"/v1/audio/voices?model={model}").body)["voices"]
        assert {"default", "low", "high", "aunt"} <= set(voices)
        for voice in (*voices, "alloy", {"id": "high"}):
            assert server.speak("a dog", model=model, voice=voice, response_format="pcm").status == 200, voice


def test_voices_sound_different_and_the_default_is_the_first(server: Server) -> None:
    sounds = {voice: server.speak("a dog", model="base:tiny", voice=voice, response_format="pcm").body
              for voice in ("default", "low", "high", "aunt")}
    assert sounds["default"] == sounds["low"]
    assert len(set(sounds.values())) == 3


@pytest.mark.parametrize(("fields", "status", "words"), [
    ({"model": "gpt-5"}, 404, ("gpt-5", f"run:{RUN}", "base:tiny")),
    ({"voice": "nobody"}, 400, ("nobody", "default", "aunt")),
    ({"voice": "/etc/passwd"}, 400, ("no voice",)),
    ({"voice": "../voices/aunt"}, 400, ("no voice",)),
    ({"language": "xx"}, 400, ("xx", "en", "fr", "am")),
    ({"input": "the 漢 cat", "language": "en"}, 400, ("漢", "U+6F22")),
    ({"input": " "}, 400, ("empty",)),
    ({"input": "a" * 2001}, 400, ("2001", "2000")),
    ({"speed": 5}, 400, ("speed", "4", "5")),
    ({"response_format": "ogg"}, 400, ("response_format", "ogg", "opus")),
    ({"seed": -1}, 400, ("seed", "-1")),
    ({"instructions": "be happy"}, 400, ("instructions",)),
    ({"timestamps": True}, 400, ("stream_format", "sse")),
])
def test_errors_name_the_value_and_what_is_served(server: Server, fields: dict[str, object], status: int,
                                                  words: tuple[str, ...]) -> None:
    answer = server.speak(**{"text": "the cat sees a dog", **{
        "text" if name == "input" else name: value for name, value in fields.items()}})  # type: ignore[arg-type]
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in answer.error["message"]


def test_the_openai_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.audio.speech.create(model="gpt-5", voice="alloy", input="a dog")
    assert "base:tiny" in str(missing.value)
    with pytest.raises(openai.BadRequestError):
        client.audio.speech.create(model="tts-1", voice="alloy", input="a dog", extra_body={"language": "xx"})


def test_the_new_language_is_the_default_of_a_finetune(server: Server) -> None:
    listed = json.loads(server.ask("GET", "/v1/models").body)["data"]
    assert [model["default_language"] for model in listed] == ["am", "en"]
    assert server.speak("ሀለመ ሰረቀ", response_format="pcm").status == 200


def test_each_answer_has_a_request_id_and_the_hash_of_the_model(server: Server) -> None:
    answer = server.speak(headers={"x-request-id": "mine-1"}, response_format="pcm")
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-model"] == f"run:{RUN}"
    assert len(answer.headers["x-model-sha256"]) == 64
    ids = {server.speak(model="no").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_words_have_times_in_order_within_the_sound(server: Server) -> None:
    *deltas, done = server.speak(TEXT, model="base:tiny", language="en", response_format="pcm", stream_format="sse",
                                 timestamps=True).events
    duration_s = sum(len(base64.b64decode(delta["audio"])) for delta in deltas) / 48_000
    words = done["words"]
    assert [word["word"] for word in words] == TEXT.split()
    times = [time for word in words for time in (word["start"], word["end"]) if time is not None]
    assert times
    assert times == sorted(times)
    assert times[-1] <= duration_s + 0.1


def test_speed_changes_the_duration(server: Server) -> None:
    plain, fast, slow = (len(server.speak(TEXT, response_format="pcm", speed=speed).body) for speed in (1, 2, 0.5))
    assert fast == pytest.approx(plain / 2, rel=0.02)
    assert slow == pytest.approx(plain * 2, rel=0.02)


def test_a_full_queue_answers_429_with_a_time_to_wait(server: Server) -> None:
    connections = [server.begin(LONG, response_format="pcm") for _ in range(8)]
    try:
        deadline = time.monotonic() + 60
        while (answer := server.speak("a dog", response_format="pcm")).status != 429:
            assert time.monotonic() < deadline
        assert int(answer.headers["retry-after"]) > 0
        assert answer.error["code"] == "rate_limit_exceeded"
    finally:
        for connection in connections:
            connection.close()
    server.wait_until_idle()


def test_a_changed_model_is_read_again_and_no_request_is_lost(world: Workspace, tmp_path: Path) -> None:
    copy = Workspace(tmp_path / "workspace")
    shutil.copytree(world.path, copy.path)
    with serving(copy, "reload", models=("base:tiny",)) as server:
        before = server.speak(response_format="pcm")
        running = server.begin(LONG, response_format="pcm")
        weights = copy.model("tiny") / "t3.safetensors"
        _change_weights(weights)
        after = server.speak(response_format="pcm")
        assert after.status == 200
        assert after.body != before.body
        assert running.getresponse().status == 200
        running.close()


def test_a_replaced_model_is_freed_when_its_last_request_has_ended(
    world: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = Workspace(tmp_path / "workspace")
    shutil.copytree(world.path, copy.path)
    models: list[weakref.ref[TTSModel]] = []

    def load(*arguments: Any) -> TTSModel:
        model = loading.load(*arguments)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(model_cache, "load", load)
    gc.disable()  # no cycle may keep a model until the next collection, which is far away in a large process
    try:
        with serving(copy, "freed", models=("base:tiny",)) as server:
            assert server.speak(response_format="pcm").status == 200
            _change_weights(copy.model("tiny") / "t3.safetensors")
            assert server.speak(response_format="pcm").status == 200
            server.wait_until_idle()
            assert [model() is None for model in models] == [True, False]
    finally:
        gc.enable()


def _change_weights(path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["speech_head.weight"] = tensors["speech_head.weight"].flip(0).contiguous()
    temporary = path.with_suffix(".new")
    save_file(tensors, temporary, metadata)
    temporary.replace(path)


def test_a_request_that_takes_too_long_is_ended(world: Workspace) -> None:
    with serving(world, "late", models=("base:tiny",), max_seconds=1, max_characters=100_000) as server:
        answer = server.speak(LONG * 4, response_format="wav")
        assert answer.status == 400
        assert "1 s" in answer.error["message"]


def test_other_addresses_need_a_key(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LISAN_SERVE_KEY", raising=False)
    with pytest.raises(UserError, match="no key"), serving(world, "open", host="0.0.0.0"):
        pass


def test_a_key_is_needed_for_all_but_health(world: Workspace, tmp_path: Path) -> None:
    key = "a-key-that-is-long-enough"
    (tmp_path / "key").write_text(f"{key}\n", encoding="utf-8")
    with serving(world, "locked", models=("base:tiny",), key_file=str(tmp_path / "key")) as server:
        assert server.ask("GET", "/health").status == 200
        for path in ("/v1/models", "/v1/audio/voices", "/metrics", "/v1/nothing"):
            answer = server.ask("GET", path)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        for wrong in ("", "Bearer", "Bearer x", f"Basic {key}", f"Bearer {key}x"):
            assert server.speak("a dog", headers={"authorization": wrong}).status == 401
        assert server.speak("a dog", headers={"authorization": f"Bearer {key}"}).status == 200
        client = openai.OpenAI(base_url=server.address, api_key=key, max_retries=0)
        assert client.audio.speech.create(model="tts-1", voice="alloy", input="a dog").content
        assert key not in json.dumps([vars(event) for event in server.listener.events], default=str)


def test_a_model_with_a_bad_outcome_is_served_only_if_that_is_accepted(world: Workspace) -> None:
    path = world.run(RUN) / learning.LEARNING
    before = path.read_bytes() if path.exists() else None
    step = _step(world)
    learning.write_learning(path.parent, LearningRecord(reports={str(step): LearningReport(step, Learning.SILENT)}))
    try:
        with pytest.raises(UserError, match="not served"), serving(world, "bad", models=(f"run:{RUN}",)):
            pass
        with serving(world, "accepted", models=(f"run:{RUN}",), accept_outcome=True) as server:
            assert server.ask("GET", "/health").status == 200
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


def _step(world: Workspace) -> int:
    from core.library.records import read_checkpoint

    return read_checkpoint(Model.open(world, f"run:{RUN}").folder).step


@pytest.mark.parametrize(("headers", "status"), [
    ({"host": "evil.example"}, 421), ({"host": "127.0.0.1.evil.example"}, 421), ({"host": ""}, 421),
    ({"origin": "https://evil.example"}, 403), ({"origin": "null"}, 403), ({"sec-fetch-site": "cross-site"}, 403),
    ({"content-type": "text/plain"}, 415), ({"content-type": ""}, 415),
    ({"host": "localhost:1"}, 200), ({"host": "[::1]:8020"}, 200),
])
def test_foreign_names_origins_and_content_types_are_refused(server: Server, headers: dict[str, str],
                                                             status: int) -> None:
    answer = server.ask("POST", "/v1/audio/speech", b'{"input": "a dog"}', JSON | headers)
    assert answer.status == status
    assert "access-control-allow-origin" not in answer.headers


def test_an_allowed_origin_may_ask(world: Workspace) -> None:
    origin = "https://chat.example.org"
    with serving(world, "cors", models=("base:tiny",), allow_origin=(origin,)) as server:
        preflight = server.ask("OPTIONS", "/v1/audio/speech", headers={
            "origin": origin, "access-control-request-method": "POST"})
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (204, origin)
        answer = server.speak("a dog", headers={"origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin
        assert server.speak("a dog", headers={"origin": "https://other.example.org"}).status == 403


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"input": 3}', b'{"model": "x"}', b"\xff\xfe",
                                  b'{"input": "\\ud800"}', b'{"input": "a", "voice": []}', b"[" * 2000])
def test_a_body_that_is_no_request_is_refused_in_the_same_format(server: Server, body: bytes) -> None:
    answer = server.ask("POST", "/v1/audio/speech", body, JSON)
    assert answer.status == 400
    assert answer.error["message"]


def test_a_body_that_is_too_large_is_refused(server: Server) -> None:
    assert server.ask("POST", "/v1/audio/speech", b'{"input": "' + b"a" * 100_000 + b'"}', JSON).status == 413


def test_metrics_count_what_happened(server: Server) -> None:
    before = server.metric("lisan_first_audio_seconds_count")
    server.speak("a dog", response_format="pcm")
    deadline = time.monotonic() + 10
    while server.metric("lisan_first_audio_seconds_count") != before + 1:
        assert time.monotonic() < deadline
    for name in ("lisan_real_time_factor_count", "lisan_audio_seconds_total", "lisan_finish_reasons_total"):
        assert server.metric(name) > 0


@pytest.mark.parametrize("sound_format", CONTENT_TYPES)
def test_parts_of_any_size_encode_to_the_whole_sound(sound_format: SoundFormat, tmp_path: Path) -> None:
    rate = 22_050
    sound = (0.3 * np.sin(np.arange(2 * rate) * 2 * np.pi * 220 / rate)).astype(np.float32)
    for streamed in (False, True):
        encoder = open_encoder(sound_format, rate, streamed)
        parts = [encoder.push(part) for part in np.split(sound, [1, 7, 5000, 5001, 20_000])]
        data = b"".join([*parts, encoder.finish()])
        encoder.close()
        decoded, decoded_rate = decode(data, sound_format, tmp_path)
        assert len(decoded) / decoded_rate == pytest.approx(2, abs=0.15)
        spectrum = np.abs(np.fft.rfft(decoded))
        assert np.argmax(spectrum) * decoded_rate / len(decoded) == pytest.approx(220, abs=3)


@pytest.mark.parametrize("speed", [0.25, 0.7, 1.0, 1.5, 4.0])
def test_a_stretched_tone_keeps_its_pitch(speed: float) -> None:
    rate = 16_000
    tone = np.sin(np.arange(2 * rate) * 2 * np.pi * 300 / rate).astype(np.float32)
    stretch = TimeStretch(rate, speed)
    parts = [stretch.push(part) for part in np.split(tone, [100, 9000, 9001])]
    sound = np.concatenate([*parts, stretch.finish()])
    assert len(sound) == pytest.approx(2 * rate / speed, abs=2)
    assert np.argmax(np.abs(np.fft.rfft(sound))) * rate / len(sound) == pytest.approx(300, abs=3)
    assert np.abs(sound[1000:-1000]).max() == pytest.approx(1, abs=0.05)


def test_instructions_are_weights_of_emotions() -> None:
    assert _emotion_of("happy 0.6, calm 0.2").weights == (0.6, 0, 0, 0, 0, 0, 0, 0.2)
    for wrong in ("be happy", "happy 2", "happy 0.7, sad 0.7", "glad"):
        with pytest.raises(UserError):
            _emotion_of(wrong)


def test_the_defaults_serve_the_built_in_model_to_this_machine_alone() -> None:
    options = ServeOptions()
    assert (options.models, options.host, options.accept_outcome) == (("base:tiny",), "127.0.0.1", False)


class SlowEncoder:
    """An encoder that notices if it is closed while it encodes, which aborts the process in libopus."""

    def __init__(self, encoding: threading.Event) -> None:
        self.encoding, self.active, self.closed_while_active = encoding, False, list[bool]()

    def push(self, waveform: np.ndarray) -> bytes:
        self.active = True
        self.encoding.set()
        time.sleep(0.5)
        self.active = False
        return b"sound"

    def finish(self) -> bytes:
        return b""

    def close(self) -> None:
        self.closed_while_active.append(self.active)


def test_no_encoder_is_closed_while_a_thread_encodes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = threading.Event()
    encoder = SlowEncoder(encoding)
    monkeypatch.setattr("core.serving.api.open_encoder", lambda *_arguments: encoder)
    connection = server.begin("a dog")
    assert encoding.wait(60)
    connection.close()
    deadline = time.monotonic() + 30
    while not encoder.closed_while_active:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert encoder.closed_while_active == [False]

"""The published package (chatterbox-tts 0.1.7) at its defaults, one request a line. Run by its own interpreter.

It stands alone: nothing of ours is on that interpreter's path. Weights are the random ones
that the package's modules are born with; only their sizes matter to the time. A request is
`{"do": NAME, ...}`, its answer one line of numbers, times in seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

Answer = dict[str, float]


class Channel:
    """Requests in, answers out. What the package itself prints goes to the error output."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def read(self) -> dict[str, Any] | None:
        """The next request; None when there are no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def answer(self, given: object) -> None:
        """Send it at once."""
        self._answers.write(json.dumps(given) + "\n")
        self._answers.flush()


def main() -> None:
    """Answer until the input ends."""
    channel = Channel()
    package = Package(channel)
    while (request := channel.read()) is not None:
        try:
            answer: object = getattr(package, request.pop("do"))(**request)
        except Exception as error:  # noqa: BLE001  (the answer to the request)
            answer = {"error": repr(error)}
        channel.answer(answer)


class Package:
    """The requests: each public method is a request."""

    device: torch.device

    def __init__(self, channel: Channel) -> None:
        self._channel, self._parts = channel, SimpleNamespace()

    def start(self, threads: int, device: str) -> Answer:
        """Load the libraries."""
        torch.set_num_threads(threads)
        self.device = torch.device(device)
        return {"threads": torch.get_num_threads()}

    def drop(self) -> Answer:
        """Free all models."""
        self._parts = SimpleNamespace()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return {}

    def t3(self, layers: int) -> Answer:
        """Make the multilingual T3; `layers` fewer than thirty are for trying."""
        self._parts.t3 = _t3(layers).to(self.device).eval()
        return {}

    def begin(self, text: int, speech: int) -> Answer:
        """`T3.inference` as `mtl_tts.generate` calls it, on `text` ids and `speech` codes, with both guidance rows.

        Answers with the time of the prefill, then to each request `decode` with that of so many codes; another
        request ends it. Hooks that a call of the package leaves behind are removed, as in a fresh process.
        """
        model = self._parts.t3
        texts = _texts(text, self.device).expand(2, -1)
        codes = torch.randint(6561, (2, speech), device=self.device)
        codes[:, 0] = 6561
        timer = DecodeTimer(self._channel, self.device)
        hook = model.tfmr.register_forward_hook(timer.after_pass)
        try:
            while True:
                timer.start()
                model.inference(t3_cond=_conditioning(1, self.device), text_tokens=texts, initial_speech_tokens=codes,
                                max_new_tokens=1000, temperature=0.8, cfg_weight=0.5, repetition_penalty=2.0,
                                min_p=0.05, top_p=1.0)
        except Ended:
            return {}
        finally:
            hook.remove()
            for layer in model.tfmr.layers:
                layer.self_attn._forward_hooks.clear()

    def s3gen(self) -> Answer:
        """Make S3Gen."""
        from chatterbox.models.s3gen import S3Gen

        self._parts.s3gen = S3Gen().to(self.device).eval()
        return {}

    def render(self, codes: int, prompt: int, steps: int) -> Answer:
        """Codes to sound by `S3Gen.inference`."""
        draw = torch.Generator().manual_seed(0)
        given = {
            "prompt_token": torch.randint(6561, (1, prompt), generator=draw).to(self.device),
            "prompt_token_len": torch.tensor([prompt], device=self.device),
            "prompt_feat": torch.randn(1, 2 * prompt, 80, generator=draw).to(self.device), "prompt_feat_len": None,
            "embedding": torch.randn(1, 192, generator=draw).to(self.device),
        }
        speech = torch.randint(6561, (1, codes), generator=draw).to(self.device)
        model = self._parts.s3gen
        return {"seconds": self._timed(lambda: model.inference(speech, ref_dict=given, n_cfm_timesteps=steps))}

    def extract(self, lengths: list[int]) -> Answer:
        """Clips of so many samples at 16 kHz to what its `prepare_conditionals` takes for T3, and all their codes."""
        from chatterbox.models.voice_encoder import VoiceEncoder

        if not hasattr(self._parts, "encoder"):
            self._parts.encoder = VoiceEncoder().to(self.device).eval()
        draw = torch.Generator().manual_seed(0)
        clips = [torch.randn(length, generator=draw).mul(0.1).numpy() for length in lengths]
        tokenizer, encoder = self._parts.s3gen.tokenizer, self._parts.encoder

        def work() -> None:
            for clip in clips:
                tokenizer([clip])
                tokenizer([clip[:6 * 16000]], max_len=150)
                encoder.embeds_from_wavs([clip], sample_rate=16000)

        return {"seconds": self._timed(work)}

    def train(self, layers: int) -> Answer:
        """Make T3 with all its parameters in AdamW, in float32."""
        self._parts.resident = _resident()
        model = _t3(layers).to(self.device).train()
        self._parts.t3, self._parts.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-5)
        return {"parameters": sum(value.numel() for value in model.parameters())}

    def step(self, lengths: list[tuple[int, int]]) -> Answer:
        """One step on right-padded samples of so many text ids and codes; the useful tokens are next-token targets."""
        batch = _batch(lengths, self.device)

        def work() -> None:
            self._parts.optimizer.zero_grad(set_to_none=True)
            _loss(self._parts.t3, batch).backward()
            torch.nn.utils.clip_grad_norm_(self._parts.t3.parameters(), 1.0)
            self._parts.optimizer.step()

        return {"seconds": self._timed(work), "tokens": sum(text - 1 + codes + 1 for text, codes in lengths)}

    def memory(self) -> Answer:
        """Bytes at the peak of training, beyond what was there before the model."""
        if self.device.type == "cuda":
            return {"peak": torch.cuda.max_memory_allocated()}
        return {"peak": _peak_resident() - self._parts.resident}

    def _timed(self, work: Callable[[], object]) -> float:
        _wait(self.device)
        start = time.perf_counter()
        work()
        _wait(self.device)
        return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _t3(layers: int) -> torch.nn.Module:
    from chatterbox.models.t3 import T3
    from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
    from chatterbox.models.t3.modules.t3_config import T3Config

    LLAMA_CONFIGS["Llama_520M"]["num_hidden_layers"] = layers
    model: torch.nn.Module = T3(T3Config.multilingual())
    return model


def _conditioning(rows: int, device: torch.device) -> object:
    """A speaker, a prompt of 150 codes and an emotion."""
    from chatterbox.models.t3.modules.cond_enc import T3Cond

    prompt = torch.randint(6561, (rows, 150), device=device)
    return T3Cond(speaker_emb=torch.randn(rows, 256, device=device) / 16, cond_prompt_speech_tokens=prompt,
                  emotion_adv=torch.full((rows, 1, 1), 0.5, device=device))


def _texts(length: int, device: torch.device) -> torch.Tensor:
    """Random ids (1, length) between start and stop."""
    ids = torch.randint(1, 250, (1, length), device=device)
    ids[:, 0], ids[:, -1] = 255, 0
    return ids


class Ended(Exception):
    """No more codes are requested."""


class DecodeTimer:
    """A hook after each pass of the transformer that answers with the duration of passes, all in between included."""

    def __init__(self, channel: Channel, device: torch.device) -> None:
        self._channel, self._device = channel, device
        self._left, self._begin, self._started, self._fresh = 0, 0.0, 0.0, True

    def start(self) -> None:
        """The loop begins, for the first time or again because it ended early; its first pass is a prefill."""
        self._fresh, self._started = True, time.perf_counter()

    def after_pass(self, *_: object) -> None:
        """A pass is a code, but for a prefill; the prefill of a restarted loop does not count."""
        _wait(self._device)
        now = time.perf_counter()
        if not self._fresh:
            self._left -= 1
            if not self._left:
                self._answer(now - self._begin)
        elif self._left:
            self._begin += now - self._started
        else:
            self._answer(now - self._started)
        self._fresh = False

    def _answer(self, seconds: float) -> None:
        self._channel.answer({"seconds": seconds})
        request = self._channel.read()
        if request is None or request["do"] != "decode":
            raise Ended
        self._left, self._begin = request["codes"], time.perf_counter()


def _batch(lengths: list[tuple[int, int]], device: torch.device) -> SimpleNamespace:
    """Samples padded on the right."""
    texts = torch.zeros(len(lengths), max(text for text, _ in lengths), dtype=torch.long)
    codes = torch.zeros(len(lengths), 2 + max(codes for _, codes in lengths), dtype=torch.long)
    for row, (text, count) in enumerate(lengths):
        texts[row, :text] = _texts(text, torch.device("cpu"))
        codes[row, 1:1 + count] = torch.randint(6561, (count,))
        codes[row, 0], codes[row, 1 + count] = 6561, 6562
    text_lengths, code_lengths = torch.tensor(lengths).unbind(1)
    return SimpleNamespace(
        given=_conditioning(len(lengths), device), texts=texts.to(device), codes=codes.to(device),
        text_lengths=text_lengths.to(device), code_lengths=(code_lengths + 2).to(device),
    )


def _loss(t3: torch.nn.Module, batch: SimpleNamespace) -> torch.Tensor:
    """Next-token loss over text and speech; the package's own `loss` neither shifts nor transposes."""
    out = t3(t3_cond=batch.given, text_tokens=batch.texts, text_token_lens=batch.text_lengths,
             speech_tokens=batch.codes, speech_token_lens=batch.code_lengths, training=True)
    return sum((
        _next_token(logits, ids, lengths) for logits, ids, lengths in (
            (out.text_logits, batch.texts, batch.text_lengths), (out.speech_logits, batch.codes, batch.code_lengths))
    ), torch.zeros((), device=batch.texts.device))


def _next_token(logits: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    targets = ids[:, 1:].masked_fill(torch.arange(1, ids.shape[1], device=ids.device) >= lengths[:, None], -100)
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets)


def _resident() -> int:
    return _status("VmRSS")


def _peak_resident() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    """Bytes by the name in the process's status file."""
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines[field].split()[0]) * 1024


if __name__ == "__main__":
    main()

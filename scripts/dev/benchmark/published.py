"""The published packages (chatterbox-tts 0.1.7, indextts2-inference 2.1.1) at their defaults, one request a line.

It is run by its own interpreter and stands alone: nothing of ours is on that interpreter's path. Weights are the random
ones that the package's modules are born with; only their sizes matter to the time. A request is
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

    def answer(self, content: object) -> None:
        """Send it at once."""
        self._answers.write(json.dumps(content) + "\n")
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
        reference = {
            "prompt_token": torch.randint(6561, (1, prompt), generator=draw).to(self.device),
            "prompt_token_len": torch.tensor([prompt], device=self.device),
            "prompt_feat": torch.randn(1, 2 * prompt, 80, generator=draw).to(self.device), "prompt_feat_len": None,
            "embedding": torch.randn(1, 192, generator=draw).to(self.device),
        }
        speech = torch.randint(6561, (1, codes), generator=draw).to(self.device)
        model = self._parts.s3gen
        return {"seconds": self._timed(lambda: model.inference(speech, ref_dict=reference, n_cfm_timesteps=steps))}

    def s2mel(self) -> Answer:
        """Make IndexTTS2's flow (indextts2-inference 2.1.1) and its vocoder, both at the published sizes."""
        self._parts.s2mel, self._parts.bigvgan = _s2mel().to(self.device), _bigvgan().to(self.device)
        return {}

    def mel(self, frames: int, prompt: int, steps: int) -> Answer:
        """`CFM.inference` as `infer_v2` calls it, from noise to mel."""
        draw = torch.Generator().manual_seed(0)
        condition = torch.randn(1, prompt + frames, 512, generator=draw).to(self.device)
        mel, style = (torch.randn(shape, generator=draw).to(self.device) for shape in ((1, 80, prompt), (1, 192)))
        lengths = torch.tensor([prompt + frames], device=self.device)
        model = self._parts.s2mel
        return {"seconds": self._timed(lambda: model.inference(condition, lengths, mel, style, None, steps,
                                                              inference_cfg_rate=0.7))}

    def wave(self, frames: int) -> Answer:
        """Mel to sound by its BigVGAN without the CUDA kernel."""
        mel = torch.randn(1, 80, frames, generator=torch.Generator().manual_seed(0)).to(self.device)
        with torch.inference_mode():
            return {"seconds": self._timed(lambda: self._parts.bigvgan(mel))}

    def gpt(self, layers: int) -> Answer:
        """Make IndexTTS2's GPT; `layers` fewer than twenty-four are for trying."""
        self._parts.gpt = _unified_voice(layers).to(self.device).eval()
        self._parts.gpt.post_init_gpt2_config(kv_cache=True)
        return {}

    @torch.no_grad()
    def begin_gpt(self, text: int) -> Answer:
        """`inference_speech` as `infer_v2.py` calls it, with three beams, on `text` ids; answers as `begin` does."""
        model = self._parts.gpt
        clip = torch.randn(1, 200, 1024, generator=torch.Generator().manual_seed(0)).to(self.device)
        texts = torch.randint(2, 12_000, (1, text), device=self.device)
        width = torch.tensor([1024], device=self.device)
        emotion = model.get_emovec(clip, width)
        timer = DecodeTimer(self._channel, self.device)
        hook = model.gpt.register_forward_hook(timer.after_pass)
        try:
            while True:
                timer.start()
                model.inference_speech(
                    clip, texts, clip, cond_lengths=width, emo_cond_lengths=width, emo_vec=emotion, do_sample=True,
                    top_p=0.8, top_k=30, temperature=0.8, num_return_sequences=1, length_penalty=0.0, num_beams=3,
                    repetition_penalty=10.0, max_generate_length=1500)
        except Ended:
            return {}
        finally:
            hook.remove()

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

    def indextts2(self) -> Answer:
        """Make what IndexTTS2 takes clips through; its GPT, of which the conditioning is used, with one layer."""
        from indextts.utils.maskgct.models.codec.kmeans.repcodec_model import RepCodec
        from transformers import SeamlessM4TFeatureExtractor, Wav2Vec2BertConfig, Wav2Vec2BertModel

        self._parts.features = SeamlessM4TFeatureExtractor(padding_value=1.0)
        self._parts.states = Wav2Vec2BertModel(Wav2Vec2BertConfig()).to(self.device).eval()
        self._parts.codec = RepCodec().to(self.device).eval()
        self._parts.gpt = _unified_voice(1).to(self.device).eval()
        return {}

    @torch.no_grad()
    def extract_indextts2(self, lengths: list[int]) -> Answer:
        """Clips of so many samples at 16 kHz to codes, speaker latents and emotion vector, as `infer_v2.py` does."""
        draw = torch.Generator().manual_seed(0)
        clips = [torch.randn(length, generator=draw).mul(0.1).numpy() for length in lengths]
        width = torch.tensor([1024], device=self.device)

        def work() -> None:
            for clip in clips:
                inputs = self._parts.features(clip, sampling_rate=16000, return_tensors="pt").to(self.device)
                hidden = self._parts.states(**inputs, output_hidden_states=True).hidden_states[17]
                self._parts.codec.quantize(hidden)
                self._parts.gpt.get_conditioning(hidden.transpose(1, 2), width)
                self._parts.gpt.get_emovec(hidden, width)

        return {"seconds": self._timed(work)}

    def train(self, layers: int) -> Answer:
        """Make T3 with all its parameters in AdamW, in float32."""
        return self._train(lambda: _t3(layers), _t3_loss)

    def train_gpt(self, layers: int) -> Answer:
        """The same with IndexTTS2's GPT; of its conditioning networks, whose results trainers cache, nothing is run."""
        return self._train(lambda: _unified_voice(layers), _gpt_loss)

    def _train(self, make: Callable[[], Any], loss: Callable[..., torch.Tensor]) -> Answer:
        self._parts.resident = _resident()
        model = make().to(self.device).train()
        self._parts.trained, self._parts.loss = model, loss
        self._parts.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        return {"parameters": sum(value.numel() for value in model.parameters())}

    def step(self, lengths: list[tuple[int, int]]) -> Answer:
        """One step on right-padded samples of so many text ids and codes; the useful tokens are next-token targets."""
        model, optimizer = self._parts.trained, self._parts.optimizer

        def work() -> None:
            optimizer.zero_grad(set_to_none=True)
            self._parts.loss(model, lengths, self.device).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

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


def _s2mel() -> Any:
    from indextts.s2mel.modules.flow_matching import CFM
    from munch import Munch

    sizes = {"hidden_dim": 512, "style_condition": True}
    transformer = {
        **sizes, "num_heads": 8, "depth": 13, "class_dropout_prob": 0.1, "in_channels": 80, "content_dim": 512,
        "content_codebook_size": 1024, "content_type": "discrete", "final_layer_type": "wavenet", "is_causal": False,
        "long_skip_connection": True, "time_as_token": False, "style_as_token": False, "uvit_skip_connection": True,
    }
    wavenet = {**sizes, "num_layers": 8, "kernel_size": 5, "dilation_rate": 1, "p_dropout": 0.2}
    model = CFM(Munch.fromDict({"dit_type": "DiT", "reg_loss_type": "l1", "DiT": transformer,
                                                 "wavenet": wavenet, "style_encoder": {"dim": 192}})).eval()
    model.estimator.setup_caches(max_batch_size=1, max_seq_length=8192)
    return model


def _unified_voice(layers: int) -> Any:
    from indextts.gpt.model_v2 import UnifiedVoice

    stack = {"output_size": 512, "linear_units": 2048, "attention_heads": 8, "num_blocks": 6,
             "input_layer": "conv2d2", "perceiver_mult": 2}
    emotion = stack | {"linear_units": 1024, "attention_heads": 4, "num_blocks": 4}
    return UnifiedVoice(
        layers=layers, model_dim=1280, heads=20, max_text_tokens=600, max_mel_tokens=1815, number_text_tokens=12000,
        number_mel_codes=8194, start_mel_token=8192, stop_mel_token=8193, condition_num_latent=32,
        condition_type="conformer_perceiver", condition_module=stack, emo_condition_module=emotion)


def _bigvgan() -> Any:
    from indextts.s2mel.modules.bigvgan.bigvgan import BigVGAN
    from indextts.s2mel.modules.bigvgan.env import AttrDict

    rates = [4, 4, 2, 2, 2, 2]
    model = BigVGAN(AttrDict(
        num_mels=80, upsample_rates=rates, upsample_kernel_sizes=[2 * rate for rate in rates],
        upsample_initial_channel=1536, resblock="1", resblock_kernel_sizes=[3, 7, 11],
        resblock_dilation_sizes=[[1, 3, 5]] * 3, activation="snakebeta", snake_logscale=True, use_tanh_at_final=False,
        use_bias_at_final=False,
    ))
    model.remove_weight_norm()
    return model.eval()


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
        time_now = time.perf_counter()
        if not self._fresh:
            self._left -= 1
            if not self._left:
                self._answer(time_now - self._begin)
        elif self._left:
            self._begin += time_now - self._started
        else:
            self._answer(time_now - self._started)
        self._fresh = False

    def _answer(self, seconds: float) -> None:
        self._channel.answer({"seconds": seconds})
        request = self._channel.read()
        if request is None or request["do"] != "decode":
            raise Ended
        self._left, self._begin = request["codes"], time.perf_counter()


def _padded(lengths: list[tuple[int, int]], limit: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of texts, and codes below `limit` between start and stop, padded on the right."""
    texts = torch.zeros(len(lengths), max(text for text, _ in lengths), dtype=torch.long)
    codes = torch.zeros(len(lengths), 2 + max(codes for _, codes in lengths), dtype=torch.long)
    for row, (text, count) in enumerate(lengths):
        texts[row, :text] = _texts(text, torch.device("cpu"))
        codes[row, 1:1 + count] = torch.randint(limit, (count,))
        codes[row, 0], codes[row, 1 + count] = limit, limit + 1
    return texts.to(device), codes.to(device)


def _t3_loss(t3: Any, lengths: list[tuple[int, int]], device: torch.device) -> torch.Tensor:
    """Next-token loss over text and speech; the package's own `loss` neither shifts nor transposes."""
    texts, codes = _padded(lengths, 6561, device)
    text_lengths, code_lengths = torch.tensor(lengths, device=device).unbind(1)
    out = t3(t3_cond=_conditioning(len(lengths), device), text_tokens=texts, text_token_lens=text_lengths,
             speech_tokens=codes, speech_token_lens=code_lengths + 2, training=True)
    return _next_token(out.text_logits, texts, text_lengths) + _next_token(out.speech_logits, codes, code_lengths + 2)


def _gpt_loss(gpt: Any, lengths: list[tuple[int, int]], device: torch.device) -> torch.Tensor:
    """Next-token loss over text and codes by `UnifiedVoice.get_logits`, after 34 positions of conditioning."""
    texts, codes = _padded(lengths, 8192, device)
    text_lengths, code_lengths = torch.tensor(lengths, device=device).unbind(1)
    conditioning = torch.randn(len(lengths), 34, 1280, device=device)
    text_logits, code_logits = gpt.get_logits(
        conditioning, gpt.text_embedding(texts) + gpt.text_pos_embedding(texts), gpt.text_head,
        gpt.mel_embedding(codes) + gpt.mel_pos_embedding(codes), gpt.mel_head)
    return (_next_token(text_logits.transpose(1, 2), texts, text_lengths)
            + _next_token(code_logits.transpose(1, 2), codes, code_lengths + 2))


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

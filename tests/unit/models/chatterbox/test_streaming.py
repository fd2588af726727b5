"""Speaking while the codes come: pieces fit, and are what the whole would have been."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from models.chatterbox.flow import Flow, FlowConfig, FlowPrompt
from models.chatterbox.flow_encoder import FlowEncoderConfig
from models.chatterbox.flow_estimator import FlowEstimatorConfig
from models.chatterbox.hift import HiFT, HiFTConfig
from models.chatterbox.streaming import ChunkSchedule, StreamingSynthesizer, StreamingVocoder
from scripts.dev.random_weights import fill
from tests.parity import relative_error

FLOW = FlowConfig(
    n_codes=50, speaker_embedding_size=12,
    encoder=FlowEncoderConfig(width=32, heads=4, hidden=48, blocks=2, up_blocks=1),
    estimator=FlowEstimatorConfig(n_mels=8, width=24, heads=2, head_size=8, hidden=32, transformers=1, mid_blocks=2),
)
SCHEDULE = ChunkSchedule(first_size=8, growth=1.5, max_size=12, lookahead=8)


def stream(talk: StreamingSynthesizer, chunks: Iterable[torch.Tensor], drop: int = 0) -> Iterator[torch.Tensor]:
    """Chunks of codes (n,) to those chunks of waveform (S,) that are not empty."""
    waveforms = (*map(talk.push, chunks), talk.finish(drop))
    return (waveform for waveform in waveforms if len(waveform))


def models() -> tuple[Flow, HiFT]:
    flow, vocoder = Flow(FLOW).eval(), HiFT(HiFTConfig(n_mels=8, channels=32, f0_channels=16)).eval()
    fill(flow, 1, "flow.")
    fill(vocoder, 2, "mel2wav.")
    vocoder.fold_weight_norm()
    vocoder.f0_predictor.classifier.bias.data.fill_(150.0)  # voiced, so that a phase that jumps is heard
    return flow, vocoder


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prompt() -> FlowPrompt:
    return FlowPrompt(torch.arange(6)[None], torch.randn(1, 12, 8, generator=seeded(1)), torch.ones(1, 12))


def codes(count: int) -> torch.Tensor:
    return torch.randint(0, 50, (count,), generator=seeded(3))


def distance_db(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far `wanted` stands above its difference from `found`."""
    return (10 * torch.log10(wanted.square().sum() / (found - wanted).square().sum())).item()


def test_pieces_of_one_mel_are_the_offline_waveform():
    _, vocoder = models()
    mel = torch.randn(1, 8, 90, generator=seeded(4))
    offline = vocoder.waveform(mel, seeded(5))[0]
    pieces = StreamingVocoder(vocoder, 5)
    found = [pieces.chunk(mel[..., : until + 14], 0, until) for until in (10, 11, 40, 70)]
    found.append(pieces.chunk(mel, 0, 90, last=True))
    assert [len(piece) for piece in found] == [480 * 9, 480, 480 * 29, 480 * 30, 480 * 21]
    # Rounding moves the phase of the eighth harmonic, which is a sum of 43,200 steps.
    assert relative_error(torch.cat(found), offline) < 1e-3


def test_a_window_that_starts_later_sounds_the_same():
    _, vocoder = models()
    mel = torch.randn(1, 8, 90, generator=seeded(4))
    whole, cut = StreamingVocoder(vocoder, 5), StreamingVocoder(vocoder, 5)
    assert torch.equal(whole.chunk(mel[..., :64], 0, 50), cut.chunk(mel[..., :64], 0, 50))
    assert torch.allclose(whole.chunk(mel, 0, 90, last=True), cut.chunk(mel[..., 20:], 20, 90, last=True), atol=1e-5)


def test_a_stream_is_close_to_the_offline_sound_and_as_long():
    flow, vocoder = models()
    offline = vocoder.waveform(flow.mel(codes(50)[None], prompt(), steps=2, generator=seeded(7)), seeded(7))[0]
    talk = StreamingSynthesizer(flow, vocoder, prompt(), steps=2, seed=7, schedule=SCHEDULE)
    pieces = list(stream(talk, codes(50).split(1)))
    assert len(pieces) == 4
    assert sum(map(len, pieces)) == len(offline) == 960 * 50
    assert distance_db(torch.cat(pieces), offline) > 15


def test_a_piece_begins_as_the_one_before_would_have_gone_on():
    _, vocoder = models()
    first, second = torch.randn(2, 1, 8, 40, generator=seeded(4))  # as if the flow had changed its mind altogether
    pieces, changed, alone = (StreamingVocoder(vocoder, 5) for _ in range(3))
    start = pieces.chunk(first[..., :34], 0, 20)
    goes_on = pieces.chunk(first, 0, 40, last=True)[:480]
    assert torch.equal(changed.chunk(first[..., :34], 0, 20), start)
    found = changed.chunk(second, 0, 40, last=True)[:480]
    alone.chunk(first[..., :34], 0, 20)
    alone._held_back = alone._held_back * 0  # what is left is the new sound as it is faded in
    fresh = alone.chunk(second, 0, 40, last=True)[:480]
    ramp = torch.linspace(0, 1, 482)[1:-1]
    assert torch.allclose(found, goes_on * (1 - ramp) + fresh, atol=1e-4)
    assert fresh[:48].abs().mean() < 0.2 * fresh[-48:].abs().mean()


def test_all_codes_at_once_are_the_offline_sound():
    flow, vocoder = models()
    offline = vocoder.waveform(flow.mel(codes(20)[None], prompt(), steps=2, generator=seeded(7)), seeded(7))[0]
    talk = StreamingSynthesizer(flow, vocoder, prompt(), steps=2, seed=7, schedule=ChunkSchedule(first_size=100))
    assert len(talk.push(codes(20))) == 0
    assert torch.allclose(talk.finish(), offline, atol=1e-5)


def test_the_first_piece_comes_with_the_first_codes_and_the_same_codes_sound_the_same():
    flow, vocoder = models()
    first, second = (StreamingSynthesizer(flow, vocoder, prompt(), steps=1, seed=2, schedule=SCHEDULE)
                     for _ in range(2))
    assert len(first.push(codes(60)[:15])) == 0
    piece = first.push(codes(60)[15:16])
    assert len(piece) == 960 * 8 - 480
    assert torch.equal(second.push(codes(60)[:16]), piece)


def test_the_last_codes_can_be_dropped():
    flow, vocoder = models()
    talk = StreamingSynthesizer(flow, vocoder, prompt(), steps=1, seed=2, schedule=SCHEDULE)
    assert sum(map(len, stream(talk, codes(30).split(7), drop=1))) == 960 * 29
    silent = StreamingSynthesizer(flow, vocoder, prompt(), steps=1)
    assert list(stream(silent, [])) == []


def test_a_long_stream_forgets_what_is_far_back():
    flow, vocoder = models()
    talk = StreamingSynthesizer(flow, vocoder, prompt(), steps=1, seed=2,
                                schedule=ChunkSchedule(first_size=5, growth=1, max_size=5, context=9))
    seen = []
    mel = flow.mel
    flow.mel = lambda rows, *rest, **options: seen.append(rows.shape[1]) or mel(rows, *rest, **options)  # type: ignore
    total = sum(map(len, stream(talk, codes(80).split(5))))
    assert total == 960 * 80
    assert max(seen) <= 9 + 5 + 8 + 5

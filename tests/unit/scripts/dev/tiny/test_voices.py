"""The training of the codec for people's voices: phones, features, and the steps of encoder and decoder."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from config.errors import UserError
from models.phonetic_encoder.encoder import PhoneticEncoder
from models.tiny.model_folder import load_module
from models.tiny.vocoder import MelVocoder, MelVocoderConfig
from scripts.dev.tiny.voices import code_recogniser, phones, recordings, train_decoder, train_encoder
from scripts.dev.tiny.voices.__main__ import PACK_VOCODER
from scripts.dev.tiny.voices.codec import Codec, CodecConfig, ContentEncoder
from scripts.dev.tiny.voices.features import FEATURES, STATE_FEATURES, SpeechFeatures
from scripts.dev.tiny.voices.recordings import Recordings

SMALL = CodecConfig(width=32, encoder_blocks=1, decoder_blocks=1, frame_width=16, frame_blocks=1, phonetic=True)


@pytest.fixture(scope="module")
def extractor() -> SpeechFeatures:
    return SpeechFeatures(PhoneticEncoder.load(), load_module(PACK_VOCODER, MelVocoder(MelVocoderConfig())))


def voice(hertz: float, seconds: float) -> torch.Tensor:
    """A voice-like sound (S,) with a formant that moves: harmonics under a slow envelope."""
    times = torch.arange(int(seconds * 16000)) / 16000
    centre = 700 + 400 * torch.sin(6 * times)
    harmonics = [torch.exp(-((number * hertz - centre) / 500) ** 2) * torch.sin(2 * torch.pi * number * hertz * times)
                 for number in range(1, 20)]
    return 0.1 * torch.stack(harmonics).sum(0)


def made_up(clips: int = 8, codes: int = 12) -> Recordings:
    """Two readers whose features say which phone a code is; mel and features hold the number of the frame."""
    generator = torch.Generator().manual_seed(0)
    frames = clips * codes * 4
    letters = torch.arange(codes) // 3 % 4
    features = torch.zeros(2, clips * codes, FEATURES)
    for version in range(2):
        features[version, torch.arange(clips * codes), letters.repeat(clips)] = 3.0
    features += 0.1 * torch.randn(features.shape, generator=generator)
    return Recordings(
        waveform=torch.zeros(frames * 160).half(), features=features.half(),
        mels=(torch.arange(frames) / 100)[None, :, None].expand(2, -1, 80).half(),
        levels=torch.full((2, clips, 2), 5.0), lengths=torch.full((clips,), codes * 4),
        hops=torch.tensor([128, 172] * (clips // 2)), starts=torch.arange(clips) * codes * 4,
        readers=torch.arange(clips) // (clips // 2), names=("one", "two"), phones=("abcd",) * (clips - 1) + ("",))


def test_phones_leave_out_length_stress_and_tone():
    assert phones.phones_of_ipa("ˈbeːt tʃˈa5 é") == "betːtʃae".replace("ː", "")
    assert phones.phones_of_text("Yara sun ci, ƙasa!", "ha", espeak=None) == "jarasuntʃikasa"


def test_a_text_with_digits_gives_no_phones_where_the_spelling_is_read(tmp_path):
    reader = tmp_path / "hausa-f"
    reader.mkdir()
    (reader / "metadata.csv").write_text("a.ogg|Sunan ta\nb.ogg|Shekara 12\n", encoding="utf-8")

    phones.transcribe(tmp_path, espeak=None)

    assert phones.read_table(reader) == {"a.ogg": "sunanta"}


def test_a_damaged_table_of_phones_is_refused_by_its_name(tmp_path):
    (tmp_path / phones.TABLE).write_text("a.ogg,abc\nb.ogg\n", encoding="utf-8")

    with pytest.raises(UserError, match="phones.csv has a row of 1 fields; a file name and its phones are expected"):
        phones.read_table(tmp_path)


def test_features_of_a_faster_copy_differ_in_the_level_of_the_pitch_and_hardly_in_its_course(extractor):
    clip = recordings.analyse(voice(120.0, 2.0).numpy(), 136, extractor)

    levels, features = clip["levels"][:, 0, 0], clip["features"].float()
    assert float(levels[1] - levels[0]) == pytest.approx(0.163, abs=0.03)  # log(160 / 136)
    assert features.shape == (2, 50, FEATURES)
    assert features[..., :STATE_FEATURES].reshape(2, 100, -1).mean(1).abs().max() < 0.01
    assert float((features[0, :, STATE_FEATURES:] - features[1, :, STATE_FEATURES:]).abs().mean()) < 0.2


def test_a_waveform_has_the_codes_of_its_prepared_features(extractor):
    torch.manual_seed(0)
    codec = Codec(SMALL).eval()
    load_module(PACK_VOCODER, codec.encoder.vocoder)
    waveform = recordings.normalise_level(voice(110.0, 1.2))
    prepared = recordings.analyse(waveform.numpy(), 136, extractor)["features"][0].float()

    codes = codec.encode_waveform(waveform)

    quantized = codec.encoder(codec.encoder.standardise(prepared)[None], torch.ones(1, len(prepared), 1))
    assert codes.shape == (1, 30)
    assert float((codes == codec.quantizer.to_codes(quantized)).float().mean()) > 0.9  # half precision moves a few


def test_the_encoder_learns_to_put_phones_into_codes_and_goes_on_from_its_state(tmp_path):
    torch.manual_seed(0)
    data = made_up()
    encoder = ContentEncoder(SMALL)
    training = train_encoder.EncoderTraining(encoder, "abcd", 3e-3)
    sampler = train_encoder.Sampler(data, "abcd", encoder, torch.arange(8), 0)

    losses = [training.step(sampler.batch(4), 0.0) for _ in range(120)]

    assert float(losses[0]["phones"]) > 1.5
    assert float(losses[-1]["phones"]) < 0.5
    assert float(losses[-1]["states"]) < float(losses[0]["states"])

    save_file({name: value.contiguous() for name, value in training.state_dict().items()}, tmp_path / "state")
    other = train_encoder.EncoderTraining(ContentEncoder(SMALL), "abcd", 3e-3)
    other.load_state_dict(load_file(tmp_path / "state"))
    batch = sampler.batch(4)
    assert torch.equal(other.average(batch.inputs, batch.mask), training.average(batch.inputs, batch.mask))


def test_crops_for_the_decoder_have_the_codes_of_their_frames_and_a_reference_of_their_voice():
    data = made_up(codes=100)
    quantized = (torch.arange(800) / 25)[None, :, None].expand(2, -1, 5)
    sampler = train_decoder.Sampler(data, quantized, SMALL, torch.arange(8), 0)

    batch = sampler.batch(64, augment=False)

    frames = 100 * (batch.target[:, ::4, 0] * SMALL.mel_std + SMALL.mel_mean)
    assert torch.allclose(frames / 4, 25 * batch.quantized[..., 0], atol=0.5 + frames.max() / 1000)
    for version in range(2):
        for clip in range(8):
            members = sampler.members[int(sampler.voices[version, clip])].tolist()
            assert clip in members
            assert {clip // 4} == {member // 4 for member in members}
            assert version == 0 or {member % 2 for member in members} == {clip % 2}


def test_a_decoder_starts_from_another_codec_whose_codes_it_does_not_know(tmp_path):
    torch.manual_seed(0)
    old = Codec(CodecConfig(**{**SMALL.__dict__, "phonetic": False}))
    old.save(tmp_path)
    training = train_decoder.DecoderTraining(Codec(SMALL), PhoneticEncoder.load(), 1e-3)
    codes_in = training.codec.decoder.codes_in.weight.clone()

    training.start_from(tmp_path)

    assert torch.equal(training.codec.decoder.codes_in.weight, codes_in)
    assert torch.equal(training.codec.decoder.up.weight, old.decoder.up.weight.half().float())


def test_a_decoder_step_changes_decoder_and_speaker_path_and_not_the_codes():
    data = made_up(codes=70)
    codec = Codec(SMALL)
    training = train_decoder.DecoderTraining(codec, PhoneticEncoder.load(), 1e-3)
    training.steps = train_decoder.BLURRED_STEPS
    sampler = train_decoder.Sampler(data, train_decoder.codes_of(data, codec), SMALL, torch.arange(8), 0)
    before = {name: value.clone() for name, value in codec.state_dict().items()}

    losses = training.step(sampler.batch(2), 0.1)

    changed = {name for name, value in codec.state_dict().items() if not torch.equal(value, before[name])}
    assert {"l1", "phonetic", "adversarial", "features", "critic", "level"} == set(losses)
    assert {name.split(".")[0] for name in changed} == {"decoder", "encoder"}
    assert {name.split(".")[1] for name in changed if name.startswith("encoder")} == {"speaker_encoder"}


def test_a_head_reads_the_letters_that_codes_hold():
    torch.manual_seed(0)
    labels = torch.tensor([1, 2, 3, 2, 1])
    values = torch.nn.functional.one_hot(labels.repeat_interleave(3), 4).float()
    head = code_recogniser.train([(values, labels)] * 4, 4, 4.0, 0)

    read = code_recogniser.greedy(head(values[None])[0].detach().numpy())
    assert read == labels.tolist()

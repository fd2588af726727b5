"""The CTC head on phonetic features."""

from __future__ import annotations

import torch

from models.phonetic_encoder.ctc_head import CTCHead, CTCHeadConfig
from models.phonetic_encoder.encoder import FEATURES


def test_a_head_of_one_language_has_no_vectors_of_languages() -> None:
    """So heads of datasets from before there were several languages load."""
    names = CTCHead(CTCHeadConfig(3, width=8, blocks=1)).state_dict().keys()

    assert not any(name.startswith("language") for name in names)


def test_log_probabilities_keep_an_odd_number_of_frames() -> None:
    head = CTCHead(CTCHeadConfig(3, width=8, blocks=1)).eval()

    rows = head.log_probabilities(torch.randn(7, FEATURES).half())

    assert rows.shape == (7, 4)
    assert torch.allclose(rows.exp().sum(1), torch.ones(7), atol=1e-5)


def test_a_batch_has_a_language_for_each_clip() -> None:
    torch.manual_seed(0)
    head = CTCHead(CTCHeadConfig(3, width=8, blocks=1, languages=2)).eval()
    features = torch.randn(6, FEATURES)

    with torch.no_grad():
        logits = head(head.standardise(features).expand(2, -1, -1), torch.tensor([0, 1]))

    assert not torch.allclose(logits[0], logits[1])
    for language in (0, 1):
        assert torch.allclose(logits[language].log_softmax(-1), head.log_probabilities(features, language), atol=1e-5)

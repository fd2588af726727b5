"""The maker's signature on the Share tab: what it says, how to sign, and the makers who are trusted.

The page takes no private key: it offers what is to be signed, and takes the signature that was made elsewhere. An
export is often made on a rented machine, and nobody who signs in to the page should sign in its owner's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gradio as gr

from config import foreign
from config.errors import UserError
from core.library import maker_signature
from core.library.maker_signature import NAMESPACE, MakerOutcome, MakerSignature
from core.library.verification import STATEMENT, hash_cache
from core.sources import source_preview
from core.workspace import Workspace
from ui import job_views, media
from ui.live import View, choice_update
from ui.markup import NOTHING, Html, div, element, join, paragraph, table
from ui.page import Page

TAB = "share"
_TONES = {MakerOutcome.TRUSTED: "good", MakerOutcome.OTHER_FILES: "bad", MakerOutcome.INVALID: "bad"}


def build(page: Page, subject: gr.Dropdown, chosen: Callable[[View], str]) -> None:
    """Lay out the section; `subject` is the choice of a run or export, `chosen` its value in a view."""
    about = gr.HTML(elem_id="signature")
    upload = gr.File(file_count="single", type="filepath", height=100, elem_id="signature-upload",
                     label="Signature (signed.sha256.sig or signed.sha256.minisig)")
    add = gr.Button("Add signature", size="md", elem_id="signature-add", scale=0, min_width=160)
    signature = gr.State("")  # The uploaded signature, a text in both formats.
    notice = gr.HTML(elem_classes="notices")
    page.live.panel(about, lambda view: section(page.workspace, chosen(view)), TAB)
    page.on(upload.upload, _read, [upload], [notice, signature, upload], files=True)
    page.on(add.click, partial(_attach, page), [subject, signature], [notice, signature])

    gr.HTML(element("h3", "Trusted makers"))
    signers = gr.HTML(elem_id="signers")
    with gr.Row(elem_classes="grid"):
        name = gr.Textbox("", label="Name", info="A name of your own for the maker.", max_lines=1,
                          elem_id="signer-name", min_width=200)
        key = gr.Textbox("", label="Public key", max_lines=1, placeholder="ssh-ed25519 AAAA... or RW...",
                         info="Take it from the maker, not from a place beside the export.", elem_id="signer-key",
                         min_width=300)
    with gr.Row(elem_classes="controls"):
        trust = gr.Button("Trust", size="md", scale=0, min_width=110, elem_id="trust-signer")
        makers = gr.Dropdown([], label="Maker", elem_id="signer-choice", min_width=200)
        forget = gr.Button("Remove", size="md", scale=0, min_width=110, elem_id="forget-signer")

    page.live.watch("signer", makers)
    page.live.panel(signers, lambda view: _signers(page.workspace), TAB)
    page.live.panel(makers, lambda view: choice_update(
        [signer.name for signer in maker_signature.read_signers(page.workspace)], view.values["signer"]), TAB)
    page.on(trust.click, partial(_trust, page), [name, key], [notice, name, key])
    page.on(forget.click, partial(_forget, page), [makers], [notice])


def section(workspace: Workspace, reference: str) -> Html:
    """How the chosen export is signed, with what is to be signed."""
    if not reference.startswith("export:"):
        return paragraph("Exports can be signed by their maker. Choose an export above.", class_="small")
    name = reference.removeprefix("export:")
    return join((
        paragraph("To sign it, take ", element("a", STATEMENT, href=media.statement_url(name), download=True),
                  ", sign it where your key is, and give the signature here:", class_="small"),
        element("pre", element("code", f"ssh-keygen -Y sign -n {NAMESPACE} -f ~/.ssh/id_ed25519 {STATEMENT}\n"
                                       f"minisign -S -m {STATEMENT}")),
        paragraph("At a command line: ", element("code", f"python -m scripts signature sign {reference} --key FILE"),
                  class_="small")))


def signature_view(workspace: Workspace, name: str) -> Html:
    """What the maker's signature of the export `name` says; its files were hashed before, so this takes no time."""
    try:
        result = maker_signature.check(workspace, workspace.export(name), hash_cache(workspace))
    except UserError as error:  # a damaged list of makers
        return job_views.fault(error.message, error.hint)
    if result.outcome is MakerOutcome.UNSIGNED:
        return NOTHING
    return div(f"verdict {_TONES.get(result.outcome, 'unsure')}", element("strong", _title(result)),
               paragraph(result.describe()),
               paragraph("A signature says who vouches for these files, not that the checks were computed.",
                         class_="small"))


def _title(result: MakerSignature) -> str:
    match result.outcome:
        case MakerOutcome.TRUSTED:
            return f"Signed by {result.name}"
        case MakerOutcome.UNKNOWN:
            return "Signed by an unknown maker"
        case MakerOutcome.OTHER_FILES:
            return "Signature of other files"
    return "No valid signature"


def _signers(workspace: Workspace) -> Html:
    rows = [(signer.name, element("code", signer.key.describe())) for signer in maker_signature.read_signers(workspace)]
    return table(("Name", "Key"), rows) if rows else job_views.empty("Nobody is trusted yet.")


def _read(path: str | None) -> Sequence[object]:
    """The text of an uploaded signature, whose file is deleted then."""
    paths = [Path(path)] if path else []
    try:
        content = foreign.read_bytes(paths[0], maker_signature.MOST_BYTES) if paths else b""
    finally:
        source_preview.forget_upload(paths)
    text = content.decode("utf-8", "replace")
    return [job_views.notice("Uploaded. Press Add signature to put it into the export that is chosen above."), text,
            None]


def _attach(page: Page, reference: str, text: str) -> Sequence[object]:
    """Put an uploaded signature into the chosen export."""
    if not (reference or "").startswith("export:"):
        raise UserError("No export is chosen.", "Choose an export above; runs are not signed.")
    if not text:
        raise UserError("No signature was uploaded.", "Sign signed.sha256, and upload the file that this makes.")
    folder = page.workspace.export(reference.removeprefix("export:"))
    result = maker_signature.attach(page.workspace, folder, text.encode())
    return [job_views.notice(result.describe(), "good"), ""]


def _trust(page: Page, name: str, key: str) -> Sequence[object]:
    signer = maker_signature.trust(page.workspace, (name or "").strip(), key or "")
    return [job_views.notice(f"Trusted: {signer.name} ({signer.key.describe()}).", "good"), "", ""]


def _forget(page: Page, name: str) -> Sequence[object]:
    signer = maker_signature.forget(page.workspace, name or "")
    return [job_views.notice(f"No longer trusted: {signer.name}.")]

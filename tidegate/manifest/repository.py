"""A model repository: the stored forms of one model, and the form that each kind of accelerator runs. Pure but for
``Files``.

The layout is that of SMIF (section 4.3, Table 2): ``ROOT/MODEL/ACCELERATOR/QUANTIZATION/bBATCH.SUFFIX``, or a folder
``bBATCH`` with one ``model.SUFFIX``. The folder ``any`` holds forms for every kind that has none of its own (our
choice). A kind runs the stored quantization that is asked for, else the next more precise one; and of it the form for
the largest batch up to the one that is asked for. It never runs a less precise or a larger one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.function import DnnModel, Quantization, StoredForm
from tidegate.manifest.formats import FOLDERS, by_suffix
from tidegate.schema.files import Files, Found
from tidegate.schema.rows import Text, accepts

LAYOUT: Final = "ACCELERATOR/QUANTIZATION/bBATCH.SUFFIX, for example any/fp32/b1.onnx"
_BATCH: Final = Text(r"b[1-9][0-9]{0,5}", "b and a batch size, 1 to 999999")
_WORDS: Final = frozenset(Quantization)
PRECISIONS: Final = (Quantization.INT8, Quantization.FP16, Quantization.FP32)
"""From the least precise to the most precise."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The forms of one model in a repository."""

    forms: tuple[StoredForm, ...]
    """Every stored form, by accelerator, precision and batch."""
    strange: tuple[str, ...]
    """Paths below the model's folder that the layout does not have."""


def is_repository(folder: str, wanted: DnnModel, files: Files) -> bool:
    """Returns whether the absolute ``folder`` holds a folder of the wanted model."""
    return wanted.name is not None and files.look(f"{folder}/{wanted.name}") is Found.FOLDER


def scan(folder: str, files: Files) -> Stored:
    """Returns the forms below the absolute ``folder`` of a model."""
    forms: list[StoredForm] = []
    strange: list[str] = []
    for kind in files.names(folder):
        for word in files.names(f"{folder}/{kind}") or [""]:
            names = files.names(f"{folder}/{kind}/{word}") if word in _WORDS else []
            for name in names or [""]:
                form = _form(folder, kind, Quantization(word), name, files) if name else None
                if form is not None:
                    forms.append(form)
                else:
                    strange.append("/".join(part for part in (kind, word, name) if part))
    order = sorted(forms, key=lambda each: (each.accelerator, PRECISIONS.index(each.quantization), each.batch_size))
    return Stored(tuple(order), tuple(strange))


def _form(folder: str, kind: str, quantization: Quantization, name: str, files: Files) -> StoredForm | None:
    """Returns the form of one entry of a quantization's folder; None if the entry is none."""
    path = f"{folder}/{kind}/{quantization.value}/{name}"
    stem, _, _ = name.partition(".")
    if files.look(path) is Found.FOLDER:
        inside = [each for each in files.names(path) if each.startswith("model.") and by_suffix(each) is not None]
        if len(inside) != 1:
            return None
        stem, path = name, f"{path}/{inside[0]}"
    form = by_suffix(path)
    if form is None or form in FOLDERS or not accepts(_BATCH, stem):
        return None
    return StoredForm(accelerator=kind, path=path, format=form, quantization=quantization, batch_size=int(stem[1:]))


def choose(forms: Iterable[StoredForm], wanted: DnnModel) -> tuple[StoredForm, ...]:
    """Returns the form that each kind of accelerator runs, by the kinds' names; a kind for which nothing fits is left
    out."""
    by_kind: dict[str, list[StoredForm]] = {}
    for form in forms:
        by_kind.setdefault(form.accelerator, []).append(form)
    chosen = (_best(each, wanted) for _, each in sorted(by_kind.items()))
    return tuple(form for form in chosen if form is not None)


def _best(forms: Sequence[StoredForm], wanted: DnnModel) -> StoredForm | None:
    for quantization in PRECISIONS[PRECISIONS.index(wanted.quantization) :]:
        fitting = [form for form in forms if form.quantization is quantization and form.batch_size <= wanted.batch_size]
        if fitting:
            return max(fitting, key=lambda form: form.batch_size)
    return None

"""From a record with fields to a document."""

import dataclasses

from mlm_jax.prepare.sources import parts
from mlm_jax.prepare.sources.parts import Document, Fields


def field(record: object, name: str) -> object:
    """What stands in a field, `a.b` of the record in field a; None where there is none. A whole name goes first."""
    if isinstance(record, dict) and name in record:
        return record[name]
    for key in name.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def document_of(text: object, name: object, fields: Fields, unnamed: Document) -> Document:
    """The document of a record with these values; bytes are UTF-8. unnamed: what it is called where `name` is None."""
    try:
        text, name = (value.decode() if isinstance(value, bytes) else value for value in (text, name))
    except UnicodeDecodeError:
        return dataclasses.replace(unnamed, problem="not UTF-8")
    if not isinstance(text, str):
        return dataclasses.replace(unnamed, problem=f"no text in the field {fields.text!r}")
    if len(text) > parts.LONGEST_BYTES:
        return dataclasses.replace(unnamed, problem=parts.TOO_LONG)
    if name is None:
        return dataclasses.replace(unnamed, text=text)
    if not isinstance(name, (str, int)) or isinstance(name, bool):
        return dataclasses.replace(unnamed, problem=f"no name in the field {fields.id!r}")
    return dataclasses.replace(unnamed, text=text, id=str(name))

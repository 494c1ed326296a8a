"""From a record with fields to a document."""

import dataclasses

from mlm_jax.prepare.sources.parts import Document, Fields


def field(record: object, name: str) -> object:
    """What stands in a field, `a.b` of the record in field a; None where there is none. A whole name goes first."""
    if isinstance(record, dict) and name in record:
        return record[name]
    for key in name.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def document_of(record: object, fields: Fields, unnamed: Document) -> Document:
    """The document of a record. unnamed: what it is called where it says nothing itself."""
    text, name = field(record, fields.text), field(record, fields.id) if fields.id else None
    if not isinstance(text, str):
        return dataclasses.replace(unnamed, problem=f"no text in the field {fields.text!r}")
    if name is None:
        return dataclasses.replace(unnamed, text=text)
    if not isinstance(name, (str, int)) or isinstance(name, bool):
        return dataclasses.replace(unnamed, problem=f"no name in the field {fields.id!r}")
    return dataclasses.replace(unnamed, text=text, id=str(name))

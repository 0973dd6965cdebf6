"""The page for people (``/``) and the description for tools (``/openapi.json``) of a model server."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from .... import __version__
from ..catalogue import Catalogue
from ..decoding.served import ServedDecoder
from ..examples import example_call, example_line
from ..json_text import write_json
from ..signature import Signature, TensorInfo
from .application import Request, Response, Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..catalogue import ServedModel

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.4em}h2{font-size:1.15em;margin-top:2em;border-top:1px solid #ddd;padding-top:1em}
code,pre,textarea{font:13px/1.4 ui-monospace,monospace}pre{background:#f5f5f5;padding:.7em;overflow:auto}
table{border-collapse:collapse}td,th{text-align:left;padding:.1em 1.2em .1em 0}th{font-weight:600}
textarea{width:100%;box-sizing:border-box;height:5em}button{font:inherit;padding:.2em 1em}
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}pre,textarea{background:#222;color:#ddd}}
"""
_SCRIPT = """
document.onsubmit = async event => {
  event.preventDefault();
  const form = event.target, out = form.querySelector("output"), headers = {"Content-Type": "application/json"};
  const token = form.elements.token && form.elements.token.value, model = form.dataset.model;
  if (token) headers["Authorization"] = "Bearer " + token;
  out.textContent = "...";
  try {
    if (model === undefined) {
      const reply = await fetch(form.dataset.path, {method: "POST", headers, body: form.elements.body.value});
      out.textContent = reply.status + "\\n" + await reply.text();
      return;
    }
    const page = new DOMParser().parseFromString(await (await fetch("", {headers})).text(), "text/html");
    const found = [...page.querySelectorAll("section")].find(each => each.dataset.name === model);
    if (!found || found.dataset.locked) { out.textContent = "This is not the model's token."; return; }
    form.closest("section").replaceWith(found);
    found.querySelector("[name=token]").value = token;
  } catch (error) { out.textContent = String(error); }
};
"""
_NOT_KEPT = {"cache-control": "no-store"}  # answers depend on the token that is sent


class Pages:
    """Its handlers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def routes(self) -> list[Route]:
        """Return the paths that it answers."""
        return [
            Route("GET", re.compile("/"), self._page),
            Route("GET", re.compile(r"/openapi\.json"), self._openapi),
        ]

    def _models(self) -> list[tuple[str, ServedModel | ServedDecoder]]:
        """Return the loaded models for which the request bears the token."""
        models = self._catalogue.models
        found = [(name, models[name].find("", "")) for name in self._catalogue.open_names()]
        return [(name, model) for name, model in found if model is not None]

    async def _page(self, request: Request) -> Response:
        host = request.headers.get("host", "127.0.0.1")
        parts = [
            _section(name, model, f"{request.scheme}://{host}", self._catalogue.needs_token(name))
            for name, model in self._models()
        ]
        shown = set(self._catalogue.open_names())
        parts += [
            _locked_section(name) for name, each in self._catalogue.models.items() if each.loaded and name not in shown
        ]
        others = [name for name, entry in self._catalogue.models.items() if not entry.loaded]
        if others:
            parts.append(f"<h2>Not loaded</h2><p>{html.escape(', '.join(others))}</p>")
        text = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>Models</title>'
            '<meta name="viewport" content="width=device-width">'
            f"<style>{_STYLE}</style><h1>Models</h1><p>anabranch {html.escape(__version__)}; "
            '<a href="openapi.json">OpenAPI</a>, <a href="metrics">metrics</a></p>'
            f"{''.join(parts)}<script>{_SCRIPT}</script></html>"
        )
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", **_NOT_KEPT}
        return Response(text.encode("utf-8"), "text/html; charset=utf-8", headers)

    async def _openapi(self, request: Request) -> Response:
        paths: dict[str, dict[str, dict[str, object]]] = {}
        for name, model in self._models():
            if isinstance(model, ServedDecoder):
                paths[f"/v2/models/{name}/generate"] = _operation(name, "Generate a sequence", _generation(model))
                paths[f"/v2/models/{name}/generate_stream"] = _operation(
                    name, "Generate a sequence, an event for each token", _generation(model), "text/event-stream"
                )
                continue
            signature = model.servable.signature()
            if not signature.states:  # requests by this protocol name no sequence
                paths[f"/v1/models/{name}:predict"] = _operation(name, "Predict (TensorFlow Serving)", _rows(signature))
            paths[f"/v2/models/{name}/infer"] = _operation(name, "Infer (Open Inference Protocol)", _tensors(signature))
        paths["/v2/health/ready"] = {"get": {"summary": "Whether all models answer", "responses": _RESPONSES}}
        found = {
            "openapi": "3.1.0",
            "info": {"title": "Models", "version": __version__},
            "paths": paths,
            "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        }
        for name, _ in self._models():
            if self._catalogue.needs_token(name):
                for path, operations in paths.items():
                    if f"/models/{name}/" in path or f"/models/{name}:" in path:
                        operations["post"]["security"] = [{"token": []}]
        return Response(write_json(found), headers=_NOT_KEPT)


# --- the page -------------------------------------------------------------------------------------------------------


def _section(name: str, model: ServedModel | ServedDecoder, url: str, needs_token: bool) -> str:
    is_decoder = isinstance(model, ServedDecoder)
    first = model.decoder.signature if is_decoder else model.servable.signature()
    signatures = {"generate": first} if is_decoder else model.servable.signatures
    path, body = example_call(name, first, is_decoder)
    tables = "".join(_table(each, signature) for each, signature in signatures.items())
    curl = example_line(url, name, first, is_decoder, needs_token)
    token = "<p><label>Token <input name=token type=password></label></p>" if needs_token else ""
    form = (
        f'<form data-path="{html.escape(path)}"><p><label>Try it<textarea name=body spellcheck=false>'
        f"{html.escape(body or '')}</textarea></label></p>{token}"
        "<p><button>Send</button></p><pre><output></output></pre></form>"
    )
    heading = f"<h2>{html.escape(name)}</h2><p>Version {html.escape(model.version)}.</p>"
    return f'<section data-name="{html.escape(name)}">{heading}{tables}<pre>{html.escape(curl)}</pre>{form}</section>'


def _locked_section(name: str) -> str:
    """Return a form that asks for the token of a model, of which nothing but the name is shown without."""
    escaped = html.escape(name)
    return (
        f'<section data-name="{escaped}" data-locked=1><h2>{escaped}</h2><form data-model="{escaped}">'
        "<p>This model asks for its token.</p><p><label>Token <input name=token type=password></label> "
        "<button>Show</button> <output></output></p></form></section>"
    )


def _table(name: str, signature: Signature) -> str:
    rows = "".join(
        f"<tr><td>{kind}<td><code>{html.escape(info.name)}</code><td>{info.dtype}<td>{_sizes(info)}"
        for kind, infos in (("input", signature.inputs), ("output", signature.outputs))
        for info in infos
    )
    return f"<table><tr><th colspan=4>{html.escape(name)}</th></tr>{rows}</table>"


def _sizes(info: TensorInfo) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in info.shape)})"


# --- OpenAPI --------------------------------------------------------------------------------------------------------

_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}}
_RESPONSES = {
    "200": {"description": "The answer"},
    "default": {"description": "What went wrong", "content": {"application/json": {"schema": _ERROR}}},
}


def _operation(
    name: str, summary: str, schema: Mapping[str, object], gives: str = "application/json"
) -> dict[str, dict[str, object]]:
    answer = {"description": "The answer", "content": {gives: {"schema": {}}}}
    return {
        "post": {
            "summary": summary,
            "tags": [name],
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {**_RESPONSES, "200": answer},
        }
    }


def _value(dtype: str) -> dict[str, str]:
    if dtype == "string":
        return {"type": "string"}
    return {"type": "boolean" if dtype == "bool" else "integer" if "int" in dtype else "number"}


def _nested(info: TensorInfo, start: int) -> Mapping[str, object]:
    found: dict[str, object] = dict(_value(info.dtype))
    for size in reversed(info.shape[start:]):
        found = {"type": "array", "items": found}
        if size is not None:
            found |= {"minItems": size, "maxItems": size}
    return found


def _fields(properties: Mapping[str, object], required: list[str]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": required}


def _rows(signature: Signature) -> dict[str, object]:
    columns = {info.name: _nested(info, 1) for info in signature.inputs}
    row = next(iter(columns.values())) if len(columns) == 1 else _fields(columns, list(columns))
    instances = {"type": "array", "items": row}
    named = {"signature_name": {"type": "string"}, "instances": instances}
    by_column = {info.name: _nested(info, 0) for info in signature.inputs}
    columnar = {"signature_name": {"type": "string"}, "inputs": _fields(by_column, list(by_column))}
    return {"oneOf": [_fields(named, ["instances"]), _fields(columnar, ["inputs"])]}


def _tensors(signature: Signature) -> dict[str, object]:
    names = [info.name for info in signature.inputs]
    tensor = _fields(
        {
            "name": {"type": "string", "enum": names},
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "data": {"type": "array"},
        },
        ["name", "datatype", "shape"],
    )
    return _fields({"inputs": {"type": "array", "items": tensor}}, ["inputs"])


def _generation(model: ServedDecoder) -> dict[str, object]:
    rows = {info.name: _nested(info, 1) for info in model.decoder.signature.inputs[1:]}
    number, integer = {"type": "number"}, {"type": "integer"}
    parameters = {
        "max_tokens": integer,
        "temperature": number,
        "top_k": integer,
        "top_p": number,
        "seed": integer,
        "stop": {"type": "array"},
    }
    return _fields(
        {
            "text_input": {"type": "string"},
            "tokens": {"type": "array", "items": integer},
            "inputs": _fields(rows, list(rows)),
            "parameters": {"type": "object", "properties": parameters},
        },
        [],
    )

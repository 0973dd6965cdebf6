"""Asks the decoder "m" by OpenAI's client: run by a Python that has it, with an address."""

import sys
from importlib import import_module

openai = import_module("openai")
client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
assert [each.id for each in client.models.list()] == ["m", "plain", "dense"]
assert [client.models.retrieve(name).id for name in ("m", "plain", "dense")] == ["m", "plain", "dense"]
found = client.completions.create(model="m", prompt="ab", max_tokens=5, temperature=0, stop=["fa"])
assert (found.choices[0].text, found.choices[0].finish_reason) == ("cde", "stop")
parts = client.completions.create(model="m", prompt="ab", max_tokens=5, temperature=0, stream=True)
assert "".join(part.choices[0].text for part in parts) == "cdefa"
asked = {"model": "m", "prompt": "ab", "max_tokens": 3, "temperature": 0}
found = client.completions.create(**asked, n=2)
assert [(each.index, each.text) for each in found.choices] == [(0, "cde"), (1, "cde")]
*_, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == ([], 2, 3, 5)
parts = list(client.completions.create(**{**asked, "max_tokens": 5}, stream=True, stop=["fa"]))
assert ("".join(part.choices[0].text for part in parts), parts[-1].choices[0].finish_reason) == ("cde", "stop")
said = ""
try:
    client.completions.create(**{**asked, "temperature": -1})
except openai.BadRequestError as error:
    said = str(error)
assert "temperature must be a number" in said
said = ""
try:
    client.completions.create(model="none", prompt="ab")
except openai.NotFoundError as error:
    said = str(error)
assert "Latest(none)" in said
